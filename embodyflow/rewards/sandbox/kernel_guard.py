"""Confinement of the current process without namespaces: Landlock and a seccomp filter, which need no privileges.

Sources: linux/landlock.h, linux/seccomp.h, linux/filter.h and the kernel's Documentation/userspace-api/landlock.rst.
"""

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterable, Sequence

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
SYS_CREATE_RULESET, SYS_ADD_RULE, SYS_RESTRICT_SELF = 444, 445, 446
READ_FILE, READ_FOLDER, EXECUTE, WRITE_FILE, TRUNCATE, IOCTL = 1 << 2, 1 << 3, 1, 1 << 1, 1 << 14, 1 << 15
READABLE = (
    "/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime", "/etc/passwd", "/sys/devices/system/cpu",
)  # fmt: skip
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")

ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
CLONE_THREAD = 0x00010000
X32 = 0x40000000
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

# Numbers of a system call on x86_64 and aarch64; None where the architecture has no such call.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "kcmp": (312, 272),
    "kill": (62, 129), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "socket": (41, 198), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "io_uring_setup": (425, 425),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "chroot": (161, 51),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "open_by_handle_at": (304, 265),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "shmget": (29, 194), "semget": (64, 190),
    "msgget": (68, 186), "mq_open": (240, 180), "fork": (57, None), "vfork": (58, None),
    "execve": (59, 221), "execveat": (322, 281), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "utimensat": (280, 88), "futimesat": (261, None),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "truncate": (76, 45),
}  # fmt: skip
KEYRINGS = ("keyctl", "add_key", "request_key")
"""Calls by which a program would leave something to the next one, or read keys of the user."""
CLONE, CLONE3 = (56, 220), (435, 435)
OWN_PROCESS_ONLY = ((234, 131), (302, 261), (203, 122))
"""tgkill, prlimit64 and sched_setaffinity: their first argument must be 0 or the caller's process id."""
REFUSED_COMMANDS = (((72, 25), (8, 10, 15)), ((16, 29), (0x8901, 0x8902, 0x5412, 0x541C)))
"""fcntl and ioctl: commands that direct a signal at another process (F_SETOWN, F_SETSIG) or type into a terminal."""

_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("files", "network", "scoped")]


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("descriptor", ctypes.c_int32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def confine() -> None:
    """Confine this process for good: read Python and system libraries, write in the current folder, nothing else.

    The kernel refuses other files, further processes, signals to other processes, sockets and access to other
    processes' memory and environment.

    Raises:
        OSError: The kernel has no Landlock or no seccomp filters, or the architecture is unknown.
    """
    if platform.machine() not in ARCHITECTURES:
        raise OSError(f"seccomp filters exist for {' and '.join(ARCHITECTURES)}, not {platform.machine()}")
    if (abi := _landlock_abi()) < 1:
        raise OSError("the kernel has no Landlock, which needs Linux 5.13 and landlock among its security modules")
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _restrict_files(abi, whole=True)
    _restrict_calls()


def hide_files_and_keys() -> None:
    """Refuse this process and its children what namespaces leave: other files, and the kernel's keyrings.

    Files are refused as :func:`confine` does, where the kernel has Landlock, and keyrings on known architectures.
    """
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if (abi := _landlock_abi()) >= 1:
        _restrict_files(abi, whole=False)
    if platform.machine() in ARCHITECTURES:
        architecture, column = ARCHITECTURES[platform.machine()]
        _install(b"".join([*_refusals(architecture, column, KEYRINGS), _step(RETURN, ALLOW)]))


def _landlock_abi() -> int:
    """Return the version of Landlock's interface; below 1 if the kernel has none."""
    return int(_libc.syscall(SYS_CREATE_RULESET, None, 0, 1))


def _restrict_files(abi: int, *, whole: bool) -> None:
    """Restrict the files of this process; with ``whole`` also its connections and signals."""
    bits = 13 + (abi >= 2) + (abi >= 3)
    handled = (1 << bits) - 1 | (IOCTL if abi >= 5 else 0)
    rules = _Ruleset(handled, 3 if whole and abi >= 4 else 0, 3 if whole and abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = _check(_libc.syscall(SYS_CREATE_RULESET, ctypes.byref(rules), size, 0), "Landlock")
    read = READ_FILE | READ_FOLDER | EXECUTE
    for path in dict.fromkeys((sys.prefix, sys.base_prefix, *READABLE, "/proc/self", "/proc/cpuinfo", "/proc/meminfo")):
        _allow(ruleset, path, read & handled)
    for path in DEVICES:
        _allow(ruleset, path, (READ_FILE | WRITE_FILE) & handled)
    _allow(ruleset, ".", handled)
    _check(_libc.syscall(SYS_RESTRICT_SELF, ruleset, 0), "Landlock")
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            rights &= READ_FILE | WRITE_FILE | EXECUTE | TRUNCATE | IOCTL
        rule = _PathRule(rights, descriptor)
        _check(_libc.syscall(SYS_ADD_RULE, ruleset, 1, ctypes.byref(rule), 0), f"Landlock rule for {path}")
    finally:
        os.close(descriptor)


def _restrict_calls() -> None:
    architecture, column = ARCHITECTURES[platform.machine()]
    _install(_filter(architecture, column, os.getpid()))


def _install(code: bytes) -> None:
    """Filter the system calls of this process and its children for good."""
    program = _Program(len(code) // 8, code)
    _check(_libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "seccomp")


def _filter(architecture: int, column: int, pid: int) -> bytes:
    """Return the filter in classic BPF; each block falls through to the next if its system call is another one."""
    code = _refusals(architecture, column, REFUSED)
    code += [_step(EQUAL, CLONE3[column], 0, 1), _step(RETURN, ENOSYS)]  # the C library falls back to clone
    code += _block(CLONE[column], 16, [_step(ANY_BIT, CLONE_THREAD, 1, 0), _step(RETURN, EPERM)])
    for numbers in OWN_PROCESS_ONLY:
        own = [_step(EQUAL, 0, 2, 0), _step(EQUAL, pid, 1, 0), _step(RETURN, EPERM)]
        code += _block(numbers[column], 16, own)
    for numbers, commands in REFUSED_COMMANDS:
        steps = [step for command in commands for step in (_step(EQUAL, command, 0, 1), _step(RETURN, EPERM))]
        code += _block(numbers[column], 24, steps)
    return b"".join([*code, _step(RETURN, ALLOW)])


def _refusals(architecture: int, column: int, names: Iterable[str]) -> list[bytes]:
    """Return the steps that refuse system calls by name, and leave the number of another one loaded."""
    code = [_step(LOAD, 4), _step(EQUAL, architecture, 1, 0), _step(RETURN, KILL), _step(LOAD, 0)]
    if column == 0:
        code += [_step(AT_LEAST, X32, 0, 1), _step(RETURN, EPERM)]
    for name in names:
        if (number := REFUSED[name][column]) is not None:
            code += [_step(EQUAL, number, 0, 1), _step(RETURN, EPERM)]
    return code


def _block(number: int, offset: int, steps: Sequence[bytes]) -> list[bytes]:
    """Return the steps for one system call, which read the lower half of its argument at ``offset``."""
    return [_step(EQUAL, number, 0, len(steps) + 2), _step(LOAD, offset), *steps, _step(RETURN, ALLOW)]


def _step(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", operation, if_true, if_false, value)


def _check(result: int, name: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return result

"""The inside of the sandbox, run as a script by :mod:`embodyflow.rewards.functions.sandbox`; imports nothing of ours.

Three processes where namespaces are permitted: this one, outside; the first of the namespace, whose end is the end of
all that are in it; and the program.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import sys
import types
from typing import Any

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000  # of linux/sched.h
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x4000, 0x40000  # of linux/mount.h
MOUNT_ATTR_RDONLY, AT_FDCWD, AT_RECURSIVE = 0x1, -100, 0x8000
SYS_MOUNT_SETATTR = 442  # on every architecture, since Linux 5.12
PR_SET_PDEATHSIG, PR_SET_KEEPCAPS = 1, 8  # of linux/prctl.h
CAPABILITY_VERSION, CAP_DAC_READ_SEARCH = 0x20080522, 2  # of linux/capability.h
NOBODY, FIRST_USER = 65534, 10**9
MAX_FOLDER_BYTES = 2**26
"""Of all files that a program writes, where namespaces are permitted."""
REFUSED = ("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.fork", "ctypes.")
"""Audit events that the guard lets nobody raise."""

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("to_set", "to_clear", "propagation", "user_namespace")]


def main(descriptor: int, parent_pid: int) -> None:
    """Shut ourselves in, run the order that comes through the socket, say how it went."""
    _end_with_parent(parent_pid)
    connection = socket.socket(fileno=descriptor)
    order = json.loads(connection.makefile("r").readline())
    order["user"] = _user_of_its_own()
    try:
        _shut_in(order)
    except OSError as error:
        connection.sendall(f"isolation={order['isolation']}: {error}".encode())
        raise
    connection.sendall(b"started")
    _run(order["program"], order["tests"])
    connection.sendall(order["token"].encode())


def _shut_in(order: dict[str, Any]) -> None:
    if order["isolation"] != "guard":
        try:
            _leave_the_system()
        except OSError:
            if order["isolation"] == "namespaces":
                raise
            order["isolation"] = "guard"
    if order["isolation"] != "guard":
        _in_child()  # the first process of the namespace, which must outlive
        _in_child()  # the program
    _limit(order)
    _drop_privileges(order["user"])
    if order["isolation"] == "guard":
        sys.addaudithook(_refuse)


def _run(program: str, tests: str) -> None:
    # As if imported: what a program keeps for whoever runs it as a script, asking for input or exiting, is not run.
    module = sys.modules["response"] = types.ModuleType("response")  # dataclasses look up the module they are of
    exec(compile(program, "<response>", "exec"), module.__dict__)
    module.__name__ = "__main__"  # but tests may stand behind such a guard too
    exec(compile(tests, "<tests>", "exec"), module.__dict__)


def _leave_the_system() -> None:
    """Leave network and other processes behind, and see all files but those of this folder as read-only.

    Raises:
        OSError: the kernel does not permit it.
    """
    flags = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
    if _libc.unshare(flags) != 0:  # we are not root
        _call(_libc.unshare, flags | CLONE_NEWUSER)
    folder = os.getcwd()
    _call(_libc.mount, b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    # The folder's files are in memory from here on, so that they end with the namespace and have a limit together.
    options = f"size={MAX_FOLDER_BYTES}".encode()
    _call(_libc.mount, b"tmpfs", folder.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, options)
    for path, attributes, how in (
        ("/", _MountAttributes(to_set=MOUNT_ATTR_RDONLY), AT_RECURSIVE),
        (folder, _MountAttributes(to_clear=MOUNT_ATTR_RDONLY), 0),
    ):
        size = ctypes.sizeof(attributes)
        _call(_libc.syscall, SYS_MOUNT_SETATTR, AT_FDCWD, path.encode(), how, ctypes.byref(attributes), size)
    os.chdir(folder)  # into the writable mount, which lies over the folder we were in


def _call(function: Any, *arguments: Any) -> None:
    if function(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _in_child() -> None:
    """Go on in a child; the caller waits for its end and ends too."""
    if pid := os.fork():
        os.waitpid(pid, 0)
        os._exit(0)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _user_of_its_own() -> int:
    """Return a user that no other sandbox has meanwhile, as the limit on processes counts all of a user's.

    Nobody where there is none, as in a container with few users of its own.
    """
    user = FIRST_USER + os.getpid()
    for kind in ("uid_map", "gid_map"):
        with open(f"/proc/self/{kind}") as file:
            ranges = [[int(number) for number in line.split()] for line in file]
        if not any(first <= user < first + length for first, _, length in ranges):
            return NOBODY
    return user


def _limit(order: dict[str, Any]) -> None:
    cpu_seconds = int(order["seconds"]) + 1
    limits = {
        resource.RLIMIT_AS: order["memory"],
        resource.RLIMIT_CPU: cpu_seconds,
        resource.RLIMIT_FSIZE: order["output"],
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_NPROC: order["processes"],
        resource.RLIMIT_CORE: 0,
    }
    if order["isolation"] == "guard" and os.getuid() != 0:
        del limits[resource.RLIMIT_NPROC]  # it would count whatever else the user runs, and the guard lets nobody fork
    for name, value in limits.items():
        _, most = resource.getrlimit(name)
        allowed = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(name, (allowed, allowed))


def _drop_privileges(user: int) -> None:
    """Keep nothing of root's, or of a namespace's founder's, but the right to read, which Python may need of root."""
    capabilities = 0
    if os.getuid() == 0:
        os.chown(".", user, user)
        _libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        capabilities = 1 << CAP_DAC_READ_SEARCH
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; and the upper 32 of each
    _call(_libc.capget, header, sets)
    kept = capabilities & sets[1]  # a container's root may lack it
    _call(_libc.capset, header, (ctypes.c_uint32 * 6)(kept, kept))
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a change of user had cleared it


def _end_with_parent(parent_pid: int) -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event.startswith(REFUSED):
        raise PermissionError(f"{event} is refused to programs in the sandbox")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

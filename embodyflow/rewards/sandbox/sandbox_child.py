"""Process inside the sandbox of :mod:`embodyflow.rewards.sandbox.sandbox`, a fresh interpreter.

With namespaces there are three processes: this one, outside the namespace; the first process in the namespace, whose
end ends all others in it; and the program.
"""

import ctypes
import json
import os
import resource
import signal
import socket
from typing import Any

from embodyflow.rewards.sandbox import kernel_guard
from embodyflow.rewards.sandbox.judging.judge_side import judge
from embodyflow.rewards.sandbox.judging.program_side import serve_program
from embodyflow.rewards.sandbox.sandbox_folder import BLOCK_BYTES

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000  # linux/sched.h
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x4000, 0x40000  # linux/mount.h
MOUNT_ATTR_RDONLY, AT_FDCWD, AT_RECURSIVE = 0x1, -100, 0x8000
SYS_MOUNT_SETATTR = 442  # on every architecture, since Linux 5.12
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS = 1, 4, 8  # linux/prctl.h
CAPABILITY_VERSION, CAP_DAC_READ_SEARCH = 0x20080522, 2  # linux/capability.h
NOBODY, FIRST_USER = 65534, 10**9
MAX_FOLDER_BYTES = 2**26
"""Maximum total size of the files that a program writes, with namespaces."""

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("to_set", "to_clear", "propagation", "user_namespace")]


def main(descriptor: int, calls: int) -> None:
    """Receive an order from a socket, isolate this process, and run the program or judge it.

    Args:
        descriptor: Socket to the caller, who sends the order.
        calls: Socket between the tests and the program, which run in two such processes.
    """
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    connection, pipe = socket.socket(fileno=descriptor), socket.socket(fileno=calls)
    order = json.loads(connection.makefile("r").readline())
    if order["isolation"] != "bubblewrap" and os.getppid() != order["parent"]:
        os._exit(1)  # the parent ended before the kernel knew that this process ends with it
    order["user"] = _choose_user()
    try:
        _isolate(order)
    except OSError as error:
        connection.sendall(str(error).encode())
        raise
    if order["program"] is None:
        _call(_libc.prctl, PR_SET_DUMPABLE, 0, 0, 0, 0)  # no process of the same user reads the tests in its memory
        connection.sendall(b"started")
        judge(order["tests"], pipe, connection.sendall)
    else:
        connection.sendall(b"started")
        serve_program(order["program"], pipe)


def _isolate(order: dict[str, Any]) -> None:
    if order["isolation"] == "namespaces":
        _enter_namespaces()
        _continue_in_child()  # the first process of the namespace, which must outlive the program
        _continue_in_child()  # the program
    _limit(order)
    _drop_privileges(order["user"])
    if order["isolation"] == "guard":
        kernel_guard.confine()
    elif order["program"] is not None:
        kernel_guard.hide_files_and_keys()  # such as the data set with the tests


def _enter_namespaces() -> None:
    """Enter namespaces without network and other processes, where all files outside this folder are read-only.

    Raises:
        OSError: The kernel does not permit namespaces.
    """
    flags = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
    if _libc.unshare(flags) != 0:  # this process is not root
        _call(_libc.unshare, flags | CLONE_NEWUSER)
    folder = os.getcwd()
    _call(_libc.mount, b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    # A tmpfs holds the folder's files in memory: they share one size limit and vanish with the namespace.
    options = f"size={MAX_FOLDER_BYTES},nr_inodes={MAX_FOLDER_BYTES // BLOCK_BYTES}".encode()
    _call(_libc.mount, b"tmpfs", folder.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, options)
    for path, attributes, how in (
        ("/", _MountAttributes(to_set=MOUNT_ATTR_RDONLY), AT_RECURSIVE),
        (folder, _MountAttributes(to_clear=MOUNT_ATTR_RDONLY), 0),
    ):
        size = ctypes.sizeof(attributes)
        _call(_libc.syscall, SYS_MOUNT_SETATTR, AT_FDCWD, path.encode(), how, ctypes.byref(attributes), size)
    os.chdir(folder)  # enters the writable mount, which covers the current folder


def _call(function: Any, *arguments: Any) -> None:
    if function(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _continue_in_child() -> None:
    """Continue in a forked child; the parent waits until the child ends, then exits."""
    if pid := os.fork():
        os.waitpid(pid, 0)
        os._exit(0)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _choose_user() -> int:
    """Return a user id that no other running sandbox has, since the process limit counts all processes of a user.

    Return ``nobody`` if that id is not mapped, as in a container with few user ids.
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
        del limits[resource.RLIMIT_NPROC]  # it would count the user's other processes, and the guard refuses forks
    for name, value in limits.items():
        _, hard = resource.getrlimit(name)
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (allowed, allowed))


def _drop_privileges(user: int) -> None:
    """Drop all privileges of root or of a namespace's creator except reading, which root's Python may need."""
    capabilities = 0
    if os.getuid() == 0:
        os.chown(".", user, user)
        _libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        capabilities = 1 << CAP_DAC_READ_SEARCH
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, then the upper 32 bits of each
    _call(_libc.capget, header, sets)
    kept = capabilities & sets[1]  # root in a container may lack the capability
    _call(_libc.capset, header, (ctypes.c_uint32 * 6)(kept, kept))
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # changing the user cleared it

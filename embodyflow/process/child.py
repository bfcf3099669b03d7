"""Child processes that exchange messages with their parent through a socket.

A child is a fresh interpreter. A fork would be unsafe with threads (torch, Ray), and ``multiprocessing``'s spawn would
import the caller's ``__main__`` a second time.
"""

import os
import pickle
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

SPIN_SECONDS = 0.0005
"""Limit for busy waiting, longer than a small policy takes to decide."""


def start_child(
    module: str,
    *,
    descriptors: Sequence[int] = (),
    numbers: Sequence[int] = (),
    output: int | None = None,
    start_new_session: bool = False,
) -> "tuple[subprocess.Popen[bytes], Connection]":
    """Start a process that runs a module's ``main``; return the process and the parent's end of the socket.

    The child calls ``main(descriptor, parent_pid, *descriptors, *numbers)``; ``descriptor`` is its end of the socket.

    Args:
        module: Name of the module.
        descriptors: File descriptors of further open files that the child inherits.
        numbers: Further arguments of ``main``.
        output: File descriptor for the child's stdout and stderr; None leaves it those of this process.
        start_new_session: Make the process a session leader, so that it can be killed with its own children.
    """
    ours, theirs = socket.socketpair()
    arguments = ", ".join(map(str, [theirs.fileno(), os.getpid(), *descriptors, *numbers]))
    main = f"from {module} import main; main({arguments})"
    search_path = os.pathsep.join(path for path in sys.path if path)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", main],
            pass_fds=[theirs.fileno(), *descriptors],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=start_new_session,
            env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": search_path},
        )
    return process, Connection(ours.detach())


def await_end(pid: int, seconds: float) -> bool:
    """Wait for a child to exit and return True if it did within ``seconds``; the caller must still reap it."""
    deadline = time.monotonic() + seconds
    while (ended := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)) is None:
        if time.monotonic() >= deadline:
            break
        time.sleep(0.01)
    return ended is not None


def spin(poll: select.poll) -> None:
    """Wait busily for a message, for at most :data:`SPIN_SECONDS`.

    Waking a sleeping core takes as long as a simulator step, and several times as long in a virtual machine. The caller
    needs a core of its own, because spinning takes time from processes that share it.
    """
    deadline = time.perf_counter() + SPIN_SECONDS
    while not poll.poll(0) and time.perf_counter() < deadline:
        os.sched_yield()


def send(connection: Connection, message: Any) -> None:
    """Send an object in half the time of ``Connection.send``, whose pickler also supports file descriptors."""
    connection.send_bytes(pickle.dumps(message))


def receive(connection: Connection) -> Any:
    """Receive an object that :func:`send` sent.

    Raises:
        EOFError: The other side closed the connection.
        ConnectionResetError: The other side closed it before reading everything.
    """
    return pickle.loads(connection.recv_bytes())

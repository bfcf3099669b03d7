"""A process of our own that is spoken to through a socket.

A fresh interpreter rather than a fork, which is unsafe beside threads (torch, Ray), and rather than
``multiprocessing``'s spawn, which imports the caller's ``__main__`` again.
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

AWAKE_SECONDS = 0.0005
"""How long whoever expects a message stays awake for it: longer than a small policy takes to decide."""


def start_child(
    module: str, *, descriptors: Sequence[int] = (), numbers: Sequence[int] = (), start_new_session: bool = False
) -> "tuple[subprocess.Popen[bytes], Connection]":
    """Start a process that runs ``main(descriptor, parent_pid)`` of a module; return it and our end of the socket.

    Args:
        module: its name.
        descriptors: of further open files that it shall have, given to ``main`` after the others.
        numbers: given to it after these.
        start_new_session: the process leads a session, so that all it starts can be killed with it.
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
            start_new_session=start_new_session,
            env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": search_path},
        )
    return process, Connection(ours.detach())


def await_end(pid: int, seconds: float) -> bool:
    """Give a child time to end by itself, and say whether it has; it is still to be waited for."""
    deadline = time.monotonic() + seconds
    while (ended := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)) is None:
        if time.monotonic() >= deadline:
            break
        time.sleep(0.01)
    return ended is not None


def expect(poll: select.poll) -> None:
    """Wait for a message for a moment, awake; for who has a core to itself, as it takes time from whoever shares it.

    Waking a core that went to sleep takes as long as a simulator's step, several times that in a virtual machine.
    """
    deadline = time.perf_counter() + AWAKE_SECONDS
    while not poll.poll(0) and time.perf_counter() < deadline:
        os.sched_yield()


def send(connection: Connection, message: Any) -> None:
    """Send an object; half the time of ``Connection.send``, whose pickler can also carry file descriptors."""
    connection.send_bytes(pickle.dumps(message))


def receive(connection: Connection) -> Any:
    """Receive what :func:`send` sent.

    Raises:
        EOFError: the other side is gone; or ConnectionResetError.
    """
    return pickle.loads(connection.recv_bytes())

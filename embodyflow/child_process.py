"""A process of our own that is spoken to through a socket.

A fresh interpreter rather than a fork, which is unsafe beside threads (torch, Ray), and rather than
``multiprocessing``'s spawn, which imports the caller's ``__main__`` again.
"""

import os
import pickle
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Any


def start_child(module: str, *, start_new_session: bool = False) -> "tuple[subprocess.Popen[bytes], Connection]":
    """Start a process that runs ``main(descriptor, parent_pid)`` of a module; return it and our end of the socket.

    Args:
        module: its name.
        start_new_session: the process leads a session, so that all it starts can be killed with it.
    """
    ours, theirs = socket.socketpair()
    main = f"from {module} import main; main({theirs.fileno()}, {os.getpid()})"
    search_path = os.pathsep.join(path for path in sys.path if path)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", main],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=start_new_session,
            env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": search_path},
        )
    return process, Connection(ours.detach())


def send(connection: Connection, message: Any) -> None:
    """Send an object; half the time of ``Connection.send``, whose pickler can also carry file descriptors."""
    connection.send_bytes(pickle.dumps(message))


def receive(connection: Connection) -> Any:
    """Receive what :func:`send` sent.

    Raises:
        EOFError: the other side is gone; or ConnectionResetError.
    """
    return pickle.loads(connection.recv_bytes())

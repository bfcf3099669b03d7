"""Servers of tests, and ports for those that listen seconds after their port is chosen, or again after a restart."""

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer
from threading import Thread

from embodyflow.process.ports import claim_port

_CLAIMS: list[socket.socket] = []
"""Claims on all ports so far, which hold until this process ends."""


def server_port() -> int:
    """Return a free port that no other test gets, nor any connection.

    Linux gives connections ports from 32768 on, and a Ray cluster its workers those up to 19999.
    """
    while True:
        chosen = secrets.randbelow(11_000) + 21_000
        port, claim = claim_port(chosen)
        if port == chosen:
            _CLAIMS.append(claim)
            return port
        claim.close()


@contextmanager
def answering(server: HTTPServer) -> Iterator[str]:
    """Let a server on loopback answer in a thread within the block, and close it; yield its address."""
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

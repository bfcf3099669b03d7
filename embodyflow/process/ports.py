"""Ports: which are free, claims that keep others from taking them, and whether something listens."""

import errno
import socket


def free_port(preferred: int, *, host: str = "127.0.0.1") -> int:
    """Return ``preferred`` if it is free, else a free port that the system chooses."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError(f"no free port on {host}")


def claim_port(preferred: int) -> tuple[int, socket.socket]:
    """Choose a port as :func:`free_port` does, among those that no other process on this machine has claimed.

    A server needs seconds until it listens. Without a claim, another stack that starts meanwhile would choose the same
    port and mistake the first stack's server for its own.

    Returns:
        The port, and the claim, which holds until it is closed or this process ends.
    """
    port = free_port(preferred)
    while True:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0embodyflow port {port}")  # Linux's abstract namespace leaves no file
            return port, claim
        except OSError as error:
            claim.close()
            if error.errno != errno.EADDRINUSE:
                raise
        port = free_port(0)


def listen_on(preferred: int) -> socket.socket:
    """Listen on ``preferred`` if it is free, else on a free port that the system chooses.

    A server process inherits the socket. Nobody else can take the port while that process starts, and pass for it.
    Connections wait until the server accepts them.
    """
    for port in (preferred, 0):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()
        except OSError:
            listener.close()
            continue
        return listener
    raise OSError("no free port on 127.0.0.1")


def answers(address: str) -> bool:
    """Return True if something listens at ``[ray://]host:port``; other forms, such as ``auto``, pass."""
    host, colon, port = address.rpartition("//")[2].rpartition(":")
    if not colon:
        return True
    if not _is_port(port):
        return False
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except (OSError, UnicodeError):  # nothing listens, no such host, not a name of a host
        return False
    return True


def _is_port(text: str) -> bool:
    """Return True for a number from 1 to 65535; glibc takes other numbers modulo 65536 and connects to that port."""
    return text.isascii() and text.isdecimal() and 0 < int(text) < 65536

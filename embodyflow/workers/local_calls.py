"""Calls between processes of one machine over a Unix socket, about ten times as fast as calls through Ray.

The socket is abstract: it leaves no file behind and ends with the process that listens. Then another user may take its
address. Messages are pickled, so each side talks to processes of the same user only.
"""

import asyncio
import os
import pickle
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

_LENGTH = struct.Struct("!I")
_CREDENTIALS = struct.Struct("3i")  # process, user and group of the peer

Method = Callable[..., Awaitable[Any]]


@dataclass(frozen=True)
class LocalServer:
    """A server in a running event loop. Keep a reference: uvloop closes a Unix server that is collected as garbage.

    Attributes:
        address: Address that callers connect to.
        server: The event loop's own server.
    """

    address: bytes
    server: asyncio.AbstractServer


async def serve(methods: Mapping[str, Method]) -> LocalServer:
    """Answer calls of these methods in the running event loop, for as long as the server is kept.

    The caller raises the exceptions of a method.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("")  # the kernel chooses an abstract address

    async def answer_calls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if _user_of(writer.get_extra_info("socket")) == os.getuid():
            await _answer(methods, reader, writer)
        writer.close()

    server = await asyncio.start_unix_server(answer_calls, sock=listener)
    return LocalServer(listener.getsockname(), server)


def _user_of(connected: Any) -> int:
    """Return the user of the process at the other end of a Unix socket; that of a listener when it began to listen."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


async def _answer(methods: Mapping[str, Method], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        try:
            length = await reader.readexactly(_LENGTH.size)
            name, arguments = pickle.loads(await reader.readexactly(*_LENGTH.unpack(length)))
        except asyncio.IncompleteReadError:  # the caller closed the connection
            return
        try:
            answer = True, await methods[name](*arguments)
        except Exception as error:
            answer = False, error
        message = pickle.dumps(answer)
        writer.write(_LENGTH.pack(len(message)) + message)


class LocalCaller:
    """The calling side, for one thread.

    Args:
        address: Address of a :class:`LocalServer`.

    Attributes:
        is_open: Whether further calls are possible; a call without an answer closes the connection.

    Raises:
        ConnectionError: No process of the same user listens at the address.
    """

    def __init__(self, address: bytes) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(address)
        if (user := _user_of(self._socket)) != os.getuid():
            self._socket.close()
            raise ConnectionRefusedError(f"a process of the user {user} listens at the address of this user's")
        self._answers = self._socket.makefile("rb")
        self.is_open = True

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method and return its result.

        Raises:
            ConnectionError: The listening process has ended.
            Exception: The method raised it.
        """
        message = pickle.dumps((name, arguments))
        try:
            self._socket.sendall(_LENGTH.pack(len(message)) + message)
            length = self._answers.read(_LENGTH.size)
            if len(length) < _LENGTH.size:
                raise ConnectionResetError("the other process has ended")
            succeeded, result = pickle.loads(self._answers.read(*_LENGTH.unpack(length)))
        except BaseException:  # even if interrupted: the next call would read this one's answer
            self.is_open = False
            self._answers.close()
            self._socket.close()
            raise
        if not succeeded:
            raise result
        return result

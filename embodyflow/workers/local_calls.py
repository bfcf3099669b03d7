"""Calls between processes of one machine over a Unix socket, about ten times as fast as calls through Ray.

The socket is abstract: it leaves no file behind and ends with the process that listens. Messages are pickled, so only
processes of the same user are answered.
"""

import asyncio
import os
import pickle
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

_LENGTH = struct.Struct("!I")
_CREDENTIALS = struct.Struct("3i")  # process, user and group of the peer

Method = Callable[..., Awaitable[Any]]


async def serve(methods: Mapping[str, Method]) -> bytes:
    """Answer calls of these methods in the running event loop from now on; return the address.

    The caller raises the exceptions of a method.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("")  # the kernel chooses an abstract address

    async def answer_calls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("socket")
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(credentials)[1] == os.getuid():
            await _answer(methods, reader, writer)
        writer.close()

    await asyncio.start_unix_server(answer_calls, sock=listener)
    address: bytes = listener.getsockname()
    return address


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
        address: Address that :func:`serve` returned.

    Attributes:
        is_open: Whether further calls are possible; a call without an answer closes the connection.

    Raises:
        ConnectionError: No process listens at the address.
    """

    def __init__(self, address: bytes) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(address)
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

"""One end of the pipe between the tests and the program: it calls functions of the other end and answers its calls."""

import io
import json
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from embodyflow.rewards.sandbox.judging.crossing import Crossing, Json, MalformedError, Scope

MAX_MESSAGE_BYTES = 2**24


class EndedError(Exception):
    """The other process has closed the pipe."""


class TooLargeError(Exception):
    """A message exceeds ``MAX_MESSAGE_BYTES``."""


class Peer(Crossing):
    """Synchronous calls in both directions over a socket, one line of JSON per message.

    Args:
        connection: Socket to the other process.
    """

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._reader, self._send = connection.makefile("rb"), connection.sendall

    def call(self, target: Json, arguments: tuple[Any, ...], keywords: dict[str, Any], **more: Json) -> Any:
        """Call a function of the other process and return its result.

        Arguments that the function changes change here as well.

        Args:
            target: Function as the other process knows it.
            arguments: Positional arguments.
            keywords: Keyword arguments.
            more: Further keys of the message.

        Raises:
            BaseException: The exception that the function raised.
            MalformedError: The answer is not one.
            EndedError: The other process ended.
        """
        scope = Scope()
        encoded = [self.encode(argument, scope) for argument in arguments]
        named = [[name, self.encode(value, scope)] for name, value in keywords.items()]
        self.write({"call": target, "arguments": encoded, "keywords": named, **more})
        count = len(scope.containers)
        while "call" in (answer := self.read()):
            self._answer(answer)
        self.before_answer(answer)
        for container, contents in zip(scope.containers[:count], answer["changes"], strict=True):
            self.fill(container, contents, scope)
        if "raised" in answer:
            error = self.decode(answer["raised"], scope)
            if not isinstance(error, BaseException):
                raise MalformedError("not an exception")
            raise Raised(error)
        return self.decode(answer["value"], scope)

    def serve(self) -> None:
        """Answer calls until the other process ends."""
        while True:
            try:
                message = self.read()
            except EndedError:
                return
            self._answer(message)

    def _answer(self, message: Json) -> None:
        scope = Scope()
        arguments = [self.decode(argument, scope) for argument in message["arguments"]]
        keywords = {str(name): self.decode(value, scope) for name, value in message["keywords"]}
        function = self.find(message)
        count = len(scope.containers)
        answer: dict[str, Json] = {}
        error: BaseException | None = None
        try:
            value = self.run(partial(function, *arguments, **keywords), message, answer)
        except BaseException as raised:
            error = raised
        answer["changes"] = [self.contents(container, scope) for container in scope.containers[:count]]
        if error is None:
            answer["value"] = self.encode(value, scope)
        else:
            answer["raised"] = self.encode_exception(error, scope)
        self.write(answer)

    def find(self, message: Json) -> Callable[..., Any]:
        """Return the function of this process that a message calls."""
        raise NotImplementedError

    def run(self, call: Callable[[], Any], message: Json, answer: dict[str, Json]) -> Any:
        """Run a call of the other process and return its result; the answer may get further keys."""
        return call()

    def before_answer(self, answer: Json) -> None:
        """Check an answer and use its further keys."""

    def write(self, message: Json) -> None:
        """Send a message."""
        self._send(json.dumps(message).encode() + b"\n")

    def read(self) -> Json:
        """Receive a message.

        Raises:
            EndedError: The other process ended.
            TooLargeError: The message is too large.
            MalformedError: The message is not an object of JSON.
        """
        try:
            line = self._reader.readline(MAX_MESSAGE_BYTES)
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            raise TooLargeError if len(line) == MAX_MESSAGE_BYTES else EndedError
        message = json.loads(line)
        if not isinstance(message, dict):
            raise MalformedError("not an object")
        return message


class Raised(Exception):
    """Carrier of an exception of the other process, apart from those of this one."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Printed(io.StringIO):
    """Text that a call prints, up to a size."""

    LIMIT = 2**20

    def write(self, text: str) -> int:
        """Keep text up to the limit."""
        if self.tell() < self.LIMIT:
            super().write(text[: self.LIMIT])
        return len(text)

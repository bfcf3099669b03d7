"""A contender of a benchmark in its own process, which answers messages through a pipe."""

import multiprocessing
from collections.abc import Callable
from typing import Any


class Process:
    """A process that runs ``work(pipe, *arguments)`` and first sends a message when it is ready.

    Args:
        work: Function of a module; it answers each message, and ends at ``None``.
        *arguments: Its arguments.
    """

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, *arguments))
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def ask(self, message: Any) -> Any:
        """Send a message and return the answer."""
        self._pipe.send(message)
        return self._pipe.recv()

    def join(self) -> None:
        """Wait for the end of a process that answers no messages."""
        self._process.join()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *details: object) -> None:
        self._pipe.send(None)
        self._process.join()

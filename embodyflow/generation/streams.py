"""What engines do alike about their streams."""

from collections.abc import Iterator
from contextlib import contextmanager

from embodyflow.generation.interface import Completion, GenerationError


class OneStream:
    """Keeps an engine to one open stream, and everything else out while it is open."""

    def __init__(self) -> None:
        self._is_open = False

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Hold the engine for a stream.

        Raises:
            GenerationError: another one is open.
        """
        self.refuse("another stream")
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False

    def refuse(self, what: str) -> None:
        """Raise :class:`GenerationError` if a stream is open."""
        if self._is_open:
            raise GenerationError(f"{what} while a stream is open: exhaust or close that first")


def in_order(completions: Iterator[tuple[int, Completion]]) -> list[Completion]:
    """Return what :meth:`GenerationEngine.stream` yields in the order of the requests."""
    return [completion for _, completion in sorted(completions, key=lambda pair: pair[0])]

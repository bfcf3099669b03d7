"""Stream handling that all engines share."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from embodyflow.generation.interface import Completion, GenerationError, Request


class AllAtOnce:
    """Implements :class:`~embodyflow.generation.interface.Arrivals`: all requests arrive before the first step.

    Args:
        requests: Requests in the order of their positions.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self.max_open = len(requests)
        self._waiting = list(enumerate(requests))

    def take(self, idle: bool) -> Sequence[tuple[int, Request]]:
        """Return all requests at the first call and none later."""
        taken, self._waiting = self._waiting, []
        return taken


class StreamGuard:
    """Allows an engine one open stream at a time and refuses other calls meanwhile."""

    def __init__(self) -> None:
        self._is_open = False

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the stream open within the block.

        Raises:
            GenerationError: Another stream is open.
        """
        self.require_closed("stream")
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False

    def require_closed(self, method: str) -> None:
        """Check that no stream is open when ``method`` is called.

        Raises:
            GenerationError: A stream is open.
        """
        if self._is_open:
            raise GenerationError(f"{method}: a stream is still open; exhaust or close it first")


def in_order(completions: Iterator[tuple[int, Completion]]) -> list[Completion]:
    """Return the completions of a :meth:`GenerationEngine.stream` in the order of the requests."""
    return [completion for _, completion in sorted(completions, key=lambda pair: pair[0])]

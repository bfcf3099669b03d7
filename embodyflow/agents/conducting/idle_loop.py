"""An event loop that can run until nothing is ready."""

import asyncio
import selectors
from typing import Any

MAX_POLLS = 100
"""Iterations after which the loop stops even if something is always ready, such as a workflow that polls."""


class IdleLoop(asyncio.SelectorEventLoop):
    """An event loop with :meth:`run_until_idle`."""

    def __init__(self) -> None:
        self._watched = _WatchedSelector(self)
        super().__init__(self._watched)

    def run_until_idle(self) -> None:
        """Run callbacks until none is ready and no timer is due; do not wait for any."""
        self._watched.polls_left = MAX_POLLS
        try:
            self.run_forever()
        finally:
            self._watched.polls_left = 0


class _WatchedSelector(selectors.DefaultSelector):
    """Stops a loop that would wait for events.

    An event loop asks its selector once per iteration, with a time-out other than 0 only if nothing is ready.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop, self.polls_left = loop, 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the file objects that are ready; wait for one only while the loop is not to stop when idle."""
        if not self.polls_left:
            return super().select(timeout)
        events: list[Any] = super().select(0)
        self.polls_left -= 1
        if (timeout != 0 and not events) or not self.polls_left:
            self._loop.stop()
        return events

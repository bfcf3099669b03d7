"""Time that a program takes without the model."""

import asyncio
from collections.abc import Callable


class Watch:
    """Measures the time that a program takes without the model.

    Args:
        seconds: Time until it is over.
        has_started: Called at the program's first turn or its end.

    Attributes:
        expired: Done when the time is over.
    """

    def __init__(self, seconds: float, has_started: Callable[[], None] = lambda: None) -> None:
        self._seconds, self._has_started = seconds, has_started
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.expired: asyncio.Future[None] = self._loop.create_future()

    def start(self) -> None:
        """Begin to measure."""
        self._timer = self._loop.call_later(self._seconds, self._expire)

    def on_turn(self, begins: bool) -> None:
        """Stop measuring while the model writes; begin from zero after it."""
        if self._timer is not None:
            self._timer.cancel()
        if begins:
            self._has_started()
        else:
            self.start()

    def end(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()
        self._has_started()

    def _expire(self) -> None:
        if not self.expired.done():
            self.expired.set_result(None)

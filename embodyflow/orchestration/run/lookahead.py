"""The iterations of a run that are under way at the same time, each a task of this process."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

_logger = logging.getLogger(__name__)


class Lookahead:
    """Begins iterations in order, and some ahead of the one that is waited for.

    Args:
        iterate: does an iteration, given its index; it waits for its turns itself.
        ahead: how many iterations may have begun after the one that is waited for.
        last: index of the last iteration.
    """

    def __init__(self, iterate: Callable[[int], Coroutine[Any, Any, None]], ahead: int, last: int) -> None:
        self._iterate, self._ahead, self._last = iterate, ahead, last
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def reach(self, index: int, after: int) -> None:
        """Wait until an iteration is done; whatever comes before it is, too.

        Where one fails all others are given up, and are begun again by the next call.

        Args:
            index: of the iteration.
            after: the last that is done.

        Raises:
            Exception: what the iteration raised that failed; a group, where several did.
        """
        for each in range(after + 1, min(index + self._ahead, self._last) + 1):
            if each not in self._tasks:
                self._tasks[each] = asyncio.create_task(self._iterate(each), name=f"iteration-{each}")
        while index in self._tasks:
            await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            done = [task for task in self._tasks.values() if task.done()]
            self._tasks = {each: task for each, task in self._tasks.items() if task not in done}
            if errors := [error for task in done if (error := task.exception()) is not None]:
                await self.stop()
                raise errors[0] if len(errors) == 1 else BaseExceptionGroup("several iterations failed", errors)

    async def stop(self) -> None:
        """Give up whatever is under way, and wait until all of it has ended."""
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.cancel()
        ends = await asyncio.gather(*tasks.values(), return_exceptions=True)
        for index, error in zip(tasks, ends, strict=True):
            if isinstance(error, Exception):  # it is not what the run fails with, and is told all the same
                _logger.warning("iteration %d was given up, and failed", index, exc_info=error)

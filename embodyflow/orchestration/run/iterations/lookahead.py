"""The iterations of a run that are in flight, each an asyncio task of this process."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

_logger = logging.getLogger(__name__)


class Lookahead:
    """Starts iterations in order, some of them ahead of the one that the caller waits for.

    Args:
        iterate: Runs an iteration, given its index, and waits for its turns itself.
        ahead: How many iterations may start ahead of the one that the caller waits for.
        last: Index of the last iteration.
    """

    def __init__(self, iterate: Callable[[int], Coroutine[Any, Any, None]], ahead: int, last: int) -> None:
        self._iterate, self._ahead, self._last = iterate, ahead, last
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def run_until(self, index: int, after: int) -> None:
        """Wait until an iteration and all before it are done.

        If one fails, the others in flight are cancelled, and the next call starts them again.

        Args:
            index: Index of the iteration.
            after: Index of the last iteration that is done.

        Raises:
            Exception: The error of the iteration that failed, or a group if several failed.
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
        """Cancel the iterations in flight and wait until they have ended."""
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.cancel()
        ends = await asyncio.gather(*tasks.values(), return_exceptions=True)
        for index, error in zip(tasks, ends, strict=True):
            if isinstance(error, Exception):  # the run fails with another error, so this one is only logged
                _logger.warning("iteration %d was cancelled and failed", index, exc_info=error)

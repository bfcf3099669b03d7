"""The iterations of a run that are under way at the same time, each a task of this process."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class UnderWay:
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
            if errors := [error for task in done if (error := task.exception()) is not None]:
                await self.stop()
                raise errors[0] if len(errors) == 1 else BaseExceptionGroup("several iterations failed", errors)
            self._tasks = {each: task for each, task in self._tasks.items() if not task.done()}

    async def stop(self) -> None:
        """Give up whatever is under way, and wait until all of it has ended."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""Groups of episodes that come at any time, on a batch-invariant engine."""

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from embodyflow.agents.conducting.free_running import FreeRunning
from embodyflow.generation.interface import Conversing, Sampling

T = TypeVar("T")


class OpenEnded(FreeRunning[T]):
    """Plays groups of episodes side by side, in a thread of its own, until it is closed.

    A group may come from any thread while others are played. Since the engine is batch-invariant, its rows do not
    depend on the groups beside it.

    Args:
        engine: Engine that samples; nothing else may use it before :meth:`close`.
        sampling: Sampling parameters of all turns.
        num_episodes: Number of episodes that are expected at a time; further ones wait for room.
    """

    def __init__(self, engine: Conversing, sampling: Sampling, num_episodes: int) -> None:
        super().__init__(engine, sampling)
        self._numbers = itertools.count()
        self._is_closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(num_episodes,), name="groups", daemon=True)
        self._thread.start()

    def play(self, workflows: Sequence[Callable[[int], Awaitable[T]]], timeout: float | None = None) -> list[T]:
        """Run a group's workflows to their ends and return their results, in order.

        Args:
            workflows: Workflow of each episode, which gets the number of its conversation.
            timeout: Seconds after which the group is cancelled.

        Raises:
            TimeoutError: The group took longer.
            RuntimeError: The conductor was closed.
            Exception: The first exception of a workflow, after which the others are cancelled; or that of the engine.
        """
        if not self._thread.is_alive():
            raise self._error or RuntimeError("the conductor is closed")
        playing = asyncio.run_coroutine_threadsafe(self._play(workflows), self._loop)
        try:
            return playing.result(timeout)
        except CancelledError:
            raise self._error or RuntimeError("the conductor was closed while it played the group") from None
        finally:
            playing.cancel()

    def close(self) -> None:
        """Cancel the groups that are still played, and wait until the engine is free."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._begin_to_close)
        self._thread.join()

    def _begin_to_close(self) -> None:
        self._is_closing = True
        self._changed.set()

    async def _play(self, workflows: Sequence[Callable[[int], Awaitable[T]]]) -> list[T]:
        tasks = [self._loop.create_task(self._follow_numbered(each)) for each in workflows]
        try:
            return await asyncio.gather(*tasks)
        finally:
            await _cancel(tasks)

    async def _follow_numbered(self, workflow: Callable[[int], Awaitable[T]]) -> T:
        number = next(self._numbers)
        self._num_alive += 1
        return await self._follow(number, lambda: workflow(number))

    def _run(self, num_episodes: int) -> None:
        try:
            with self._engine.converse(num_episodes, self._sampling) as self._conversations:
                self.counts = self._conversations.counts
                while not self._is_closing:
                    self._go_on()
        except BaseException as error:
            self._error = error
        finally:
            self._conversations = None
            self._end()

    def _go_on(self) -> None:
        assert self._conversations is not None
        self._idle_loop.run_until_idle()
        if self._conversations.num_open:
            for episode, completion in self._conversations.step():
                self._futures.pop(episode).set_result(completion)
        elif not self._is_closing:  # else nothing would end the wait
            self._changed.clear()
            self._loop.run_until_complete(self._changed.wait())

    def _end(self) -> None:
        """Fail groups that wait for the model with the engine's error, cancel all others, and close the loop."""
        if self._error is not None:
            for future in self._futures.values():
                future.set_exception(self._error)
            self._idle_loop.run_until_idle()
        self._loop.run_until_complete(_cancel(asyncio.all_tasks(self._loop)))
        self._loop.close()

    def _note_end(self, episode: int, failed: bool) -> None:
        self._futures.pop(episode, None)
        super()._note_end(episode, failed=False)  # the failure of a group does not end the others


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

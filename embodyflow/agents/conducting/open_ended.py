"""Groups of episodes that come at any time, on a batch-invariant engine."""

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
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
        self._is_closing = self._has_ended = False
        self._gate = threading.Lock()  # between other threads and the end of the loop, which would lose what they send
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
        playing = self._begin(workflows)
        try:
            return playing.result(timeout)
        except CancelledError:
            raise self._error or RuntimeError("the conductor was closed while it played the group") from None
        finally:
            playing.cancel()

    def close(self) -> None:
        """Cancel the groups that are still played, and wait until the engine is free."""
        self._call_soon(self._begin_to_close)
        self._thread.join()

    def _begin(self, workflows: Sequence[Callable[[int], Awaitable[T]]]) -> Future[list[T]]:
        with self._gate:
            if self._has_ended:
                raise self._error or RuntimeError("the conductor is closed")
            return asyncio.run_coroutine_threadsafe(self._play(workflows), self._loop)

    def _call_soon(self, callback: Callable[[], None]) -> None:
        """Let the loop call a function, unless it has ended; may be called from any thread."""
        with self._gate:
            if not self._has_ended:
                self._loop.call_soon_threadsafe(callback)

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
        """Cancel all groups, which then raise the engine's error if there is one, and close the loop."""
        with self._gate:
            self._has_ended = True
        self._loop.run_until_complete(_cancel_all())
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


async def _cancel_all() -> None:
    """Cancel all other tasks of the loop, also those that other threads have sent and that have not begun."""
    await _cancel(asyncio.all_tasks() - {asyncio.current_task()})

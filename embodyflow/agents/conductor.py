"""Runs the episodes of a rollout worker side by side on one generation engine."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from embodyflow.agents.transcript import Tokens
from embodyflow.generation.interface import Completion, GenerationEngine, Request, Sampling

T = TypeVar("T")


class Conductor(Generic[T]):
    """Alternates between steps of the engine and the workflows of all episodes, in one thread.

    Before each step of decoding, the workflows run until each of them waits for the model or has ended. So the requests
    that share a step depend on nothing but the episodes, and a repeated rollout has the same log-probs to the last
    bit, however long tools take. The price is that a slow tool holds up all episodes of the call.

    It implements :class:`~embodyflow.generation.interface.Arrivals`, and runs once.

    Args:
        engine: Engine that samples.
        sampling: Sampling parameters of all turns.
    """

    def __init__(self, engine: GenerationEngine, sampling: Sampling) -> None:
        self._engine, self._sampling = engine, sampling
        self._loop = asyncio.new_event_loop()
        self._arrived: list[tuple[int, Request, asyncio.Future[Completion]]] = []  # each with its episode
        self._open: list[tuple[int, asyncio.Future[Completion]]] = []  # by position of the request
        self._waiting: set[int] = set()
        self._num_alive = self.max_open = 0
        self._settled = asyncio.Event()
        self._tasks: list[asyncio.Task[T]] = []

    async def generate(self, episode: int, prompt_ids: Tokens, max_tokens: int, seed: int) -> Completion:
        """Sample a completion together with other episodes.

        Args:
            episode: Index of the episode.
            prompt_ids: Tokens that the model continues.
            max_tokens: Most tokens to sample.
            seed: Seed of the draws.

        Raises:
            RuntimeError: The episode waits for another completion already.
        """
        if episode in self._waiting:
            raise RuntimeError("an episode may wait for one turn of the model at a time")
        future: asyncio.Future[Completion] = self._loop.create_future()
        self._arrived.append((episode, Request(prompt_ids, seed, max_tokens), future))
        self._waiting.add(episode)
        self._look()
        return await future

    def run(self, workflows: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
        """Run workflows to their ends and return their results, in order.

        Raises:
            Exception: The first exception of a workflow; the others are cancelled.
        """
        self.max_open = self._num_alive = len(workflows)
        self._look()
        self._tasks = [self._loop.create_task(self._follow(workflow)) for workflow in workflows]
        try:
            for position, completion in self._engine.serve(self, self._sampling):
                episode, future = self._open[position]
                self._waiting.remove(episode)
                self._settled.clear()
                future.set_result(completion)
            return [task.result() for task in self._tasks]
        finally:
            self._end()

    def take(self, idle: bool) -> Sequence[tuple[int, Request]]:
        """Run the workflows until all of them wait or have ended; return their new requests in order of episodes."""
        if not self._settled.is_set():
            self._loop.run_until_complete(self._settled.wait())
            for task in self._tasks:
                if task.done():
                    task.result()
        arrived, self._arrived = sorted(self._arrived, key=lambda each: each[0]), []
        first = len(self._open)
        self._open += [(episode, future) for episode, _, future in arrived]
        return [(first + number, request) for number, (_, request, _) in enumerate(arrived)]

    async def _follow(self, workflow: Callable[[], Awaitable[T]]) -> T:
        try:
            return await workflow()
        except BaseException:
            self._settled.set()  # the exception ends the rollout, so nothing waits for the other workflows
            raise
        finally:
            self._num_alive -= 1
            self._look()

    def _look(self) -> None:
        if len(self._waiting) == self._num_alive:
            self._settled.set()

    def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._loop.run_until_complete(_wait_for(self._tasks))
        self._loop.close()


async def _wait_for(tasks: Sequence[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)

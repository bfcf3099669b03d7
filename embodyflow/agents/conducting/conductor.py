"""Runs the episodes of a rollout worker side by side on one generation engine, in one thread."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from embodyflow.agents.chat.transcript import Tokens
from embodyflow.generation.interface import Completion, Request, TokenCounts

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Ask:
    """An episode's request for a turn.

    Attributes:
        episode: Index of the episode.
        request: Request.
        recorded: Completion of an earlier attempt, or ``None``.
        future: Receives the completion.
    """

    episode: int
    request: Request
    recorded: Completion | None
    future: asyncio.Future[Completion]


class Conductor(ABC, Generic[T]):
    """Runs workflows that wait for turns of the model. It runs once.

    Args:
        loop: Event loop of the workflows, which the conductor closes.

    Attributes:
        counts: Tokens that the engine read and sampled, as far as it counts them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: set[int] = set()
        self._num_alive = 0
        self._tasks: list[asyncio.Task[T]] = []
        self.counts = TokenCounts()

    async def generate(
        self, episode: int, prompt_ids: Tokens, max_tokens: int, seed: int, agent: str = ""
    ) -> Completion:
        """Sample a completion together with other episodes.

        Args:
            episode: Index of the episode.
            prompt_ids: Tokens that the model continues.
            max_tokens: Most tokens to sample.
            seed: Seed of the draws.
            agent: Agent whose weights generate; empty for the only ones.

        Raises:
            RuntimeError: The episode waits for another completion already.
        """
        return await self._complete(episode, Request(prompt_ids, seed, max_tokens, agent=agent), None)

    async def replay(
        self, episode: int, prompt_ids: Tokens, max_tokens: int, seed: int, recorded: Completion, agent: str = ""
    ) -> Completion:
        """Return a completion that an earlier attempt recorded, after as many steps as it took to sample.

        So episodes meet at the same steps as before if their tools answer at once.

        Args:
            episode: Index of the episode.
            prompt_ids: Tokens that the model continued.
            max_tokens: Most tokens to sample.
            seed: Seed of the draws.
            recorded: The completion.
            agent: Agent whose weights generated it; empty for the only ones.

        Raises:
            RuntimeError: The episode waits for another completion already.
        """
        sampled = await self._complete(episode, Request(prompt_ids, seed, max_tokens, agent=agent), recorded)
        if sampled != recorded:
            log.warning("a turn of episode %d is not sampled as before; the recorded one counts", episode)
        return recorded

    def run(self, workflows: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
        """Run workflows to their ends and return their results, in order.

        Raises:
            Exception: The first exception of a workflow; the others are cancelled.
        """
        self._num_alive = len(workflows)
        self._tasks = [self._loop.create_task(self._follow(*each)) for each in enumerate(workflows)]
        try:
            self._serve(len(workflows))
            return [task.result() for task in self._tasks]
        finally:
            for task in self._tasks:
                task.cancel()
            self._loop.run_until_complete(_wait_for(self._tasks))
            self._loop.close()

    @abstractmethod
    def _ask(self, ask: Ask) -> None:
        """Take a request, and set its future's result later."""

    @abstractmethod
    def _serve(self, num_episodes: int) -> None:
        """Answer requests until all workflows have ended; raise the first exception of a workflow."""

    @abstractmethod
    def _note_end(self, episode: int, failed: bool) -> None:
        """Take note that a workflow has ended, or failed."""

    async def _complete(self, episode: int, request: Request, recorded: Completion | None) -> Completion:
        if episode in self._waiting:
            raise RuntimeError("an episode may wait for one turn of the model at a time")
        ask = Ask(episode, request, recorded, self._loop.create_future())
        self._waiting.add(episode)
        self._ask(ask)
        try:
            return await ask.future
        finally:
            self._waiting.discard(episode)

    async def _follow(self, episode: int, workflow: Callable[[], Awaitable[T]]) -> T:
        failed = True
        try:
            result = await workflow()
            failed = False
            return result
        finally:
            self._num_alive -= 1
            self._note_end(episode, failed)

    def _raise_failures(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()


async def _wait_for(tasks: Sequence[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)

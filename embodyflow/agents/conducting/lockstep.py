"""Episodes on an engine whose log-probs depend on the requests that share a step."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from embodyflow.agents.conducting.conductor import Ask, Conductor
from embodyflow.generation.interface import GenerationEngine, Request, Sampling

T = TypeVar("T")


class Lockstep(Conductor[T]):
    """Alternates between steps of the engine and the workflows of all episodes.

    Before each step of decoding, the workflows run until each of them waits for the model or has ended. So the requests
    that share a step depend on nothing but the episodes, and a repeated rollout has the same log-probs to the last
    bit, however long tools take. The price is that a slow tool holds up all episodes of the call.

    It implements :class:`~embodyflow.generation.interface.Arrivals`.

    Args:
        engine: Engine that samples.
        sampling: Sampling parameters of all turns.
    """

    def __init__(self, engine: GenerationEngine, sampling: Sampling) -> None:
        super().__init__(asyncio.new_event_loop())
        self._engine, self._sampling = engine, sampling
        self._arrived: list[Ask] = []
        self._open: list[Ask] = []  # by position of the request
        self._settled = asyncio.Event()
        self.max_open = 0

    def take(self, idle: bool) -> Sequence[tuple[int, Request]]:
        """Run the workflows until all of them wait or have ended; return their new requests in order of episodes."""
        if not self._settled.is_set():
            self._loop.run_until_complete(self._settled.wait())
            self._raise_failures()
        arrived, self._arrived = sorted(self._arrived, key=lambda ask: ask.episode), []
        first = len(self._open)
        self._open += arrived
        return [(position, ask.request) for position, ask in enumerate(arrived, first)]

    def _ask(self, ask: Ask) -> None:
        self._arrived.append(ask)
        self._look()

    def _serve(self, num_episodes: int) -> None:
        self.max_open = num_episodes
        self._look()
        for position, completion in self._engine.serve(self, self._sampling):
            ask = self._open[position]
            self._waiting.remove(ask.episode)
            self._settled.clear()
            ask.future.set_result(completion)

    def _note_end(self, episode: int, failed: bool) -> None:
        if failed:
            self._settled.set()  # the exception ends the rollout, so nothing waits for the other workflows
        self._look()

    def _look(self) -> None:
        if len(self._waiting) == self._num_alive:
            self._settled.set()

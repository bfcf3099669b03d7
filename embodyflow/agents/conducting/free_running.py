"""Episodes on a batch-invariant engine: each goes on as soon as its own tools have answered."""

import asyncio
from typing import TypeVar

from embodyflow.agents.conducting.conductor import Ask, Conductor
from embodyflow.agents.conducting.idle_loop import IdleLoop
from embodyflow.generation.interface import Completion, Conversations, Conversing, Sampling

T = TypeVar("T")


class FreeRunning(Conductor[T]):
    """Steps the engine whenever an episode waits for the model.

    Between two steps, the workflows run until none of them can go on without a tool or the model. Since the engine is
    batch-invariant, a repeated rollout has the same log-probs to the last bit, whichever episodes shared a step.

    Args:
        engine: Engine that samples.
        sampling: Sampling parameters of all turns.
    """

    def __init__(self, engine: Conversing, sampling: Sampling) -> None:
        self._idle_loop = IdleLoop()
        super().__init__(self._idle_loop)
        self._engine, self._sampling = engine, sampling
        self._conversations: Conversations | None = None
        self._futures: dict[int, asyncio.Future[Completion]] = {}
        self._changed = asyncio.Event()  # a workflow asked or ended
        self._failed = False

    def _ask(self, ask: Ask) -> None:
        assert self._conversations is not None, "workflows run inside of run"
        recorded = () if ask.recorded is None else ask.recorded.token_ids
        self._conversations.ask(ask.episode, ask.request, recorded)
        self._futures[ask.episode] = ask.future
        self._changed.set()

    def _serve(self, num_episodes: int) -> None:
        with self._engine.converse(num_episodes, self._sampling) as self._conversations:
            self.counts = self._conversations.counts
            while self._num_alive:
                self._idle_loop.run_until_idle()
                if self._failed:
                    break
                if self._conversations.num_open:
                    for episode, completion in self._conversations.step():
                        self._futures.pop(episode).set_result(completion)
                elif self._num_alive:
                    self._changed.clear()
                    self._loop.run_until_complete(self._changed.wait())
        self._conversations = None
        self._raise_failures()

    def _note_end(self, episode: int, failed: bool) -> None:
        self._failed |= failed
        self._changed.set()
        if self._conversations is not None:
            self._conversations.end(episode)

"""Decisions of one policy for several threads."""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from embodyflow.policies.base import Decision

Observation = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class _Question:
    observation: Observation
    noise: np.ndarray
    answer: Future[Decision] = field(default_factory=Future)

    def __len__(self) -> int:
        return len(self.noise)


class SharedDecisions:
    """Lets threads share the batches of a policy: all that wait while it acts are in its next batch.

    A decision must not depend on the rows beside it, since timing decides which these are.

    Args:
        act: Function from observations, ``[n, ...]`` by name, and noise, float32 ``[n, R]``, to decisions; no two
            threads call it at a time.
        batch_size: Most rows of a call of ``act``, and of :meth:`decide`.
    """

    def __init__(self, act: Callable[[Observation, np.ndarray], Decision], batch_size: int) -> None:
        self._act, self._batch_size = act, batch_size
        self._acting = threading.Lock()
        self._queue = deque[_Question]()  # append and popleft are atomic
        self._is_closed = False

    def close(self) -> None:
        """Refuse further decisions, so that the threads that ask for them end."""
        self._is_closed = True

    def decide(self, observation: Observation, noise: np.ndarray) -> Decision:
        """Decide for the environments of a thread; see :class:`~embodyflow.rollouts.embodied.episode_turns.Decide`.

        Raises:
            RuntimeError: The decisions were closed.
            Exception: The policy raised it.
        """
        if self._is_closed:
            raise RuntimeError("the group was cancelled")
        question = _Question(observation, noise)
        self._queue.append(question)
        with self._acting:
            while not question.answer.done():  # the thread before may have answered it
                self._answer(self._next_batch())
        return question.answer.result()

    def _next_batch(self) -> list[_Question]:
        """Take the oldest questions that fit into a batch; only the thread that acts takes any."""
        batch = [self._queue.popleft()]
        while self._queue and sum(map(len, batch)) + len(self._queue[0]) <= self._batch_size:
            batch.append(self._queue.popleft())
        return batch

    def _answer(self, batch: list[_Question]) -> None:
        try:
            names = batch[0].observation
            observation = {name: np.concatenate([each.observation[name] for each in batch]) for name in names}
            decision = self._act(observation, np.concatenate([each.noise for each in batch]))
        except BaseException as error:
            for each in batch:
                each.answer.set_exception(error)
            return
        last = 0
        for each in batch:
            first, last = last, last + len(each)
            part = slice(first, last)
            each.answer.set_result(Decision(decision.tokens[part], decision.log_probs[part], decision.actions[part]))

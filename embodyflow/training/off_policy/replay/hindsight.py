"""Hindsight experience replay (Andrychowicz et al. 2017, arXiv:1707.01495): batches with goals that were achieved.

Transitions are relabelled when they are drawn, as Stable-Baselines3 does it. The buffer on disk keeps what the
environments did, so a commit, a resume and a return to an earlier checkpoint need nothing else: which goals a batch has
follows from the transitions and from the update's own draws.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from embodyflow.config.robots.hindsight import HindsightConfig
from embodyflow.training.off_policy.replay.replay_buffer import SEGMENT_SIZE, ReplayBuffer, Transitions, of_records
from embodyflow.training.off_policy.replay.segments import Array

Indices = npt.NDArray[np.int64]

STRIDE = 2**40
"""Distance of the keys of one environment from those of the next."""


class Goals(Protocol):
    """Places and rewards of goals, as :class:`~embodyflow.simulation.goal_rewards.GoalRewards` has them.

    Attributes:
        achieved: Place of the achieved goal in a state.
        desired: Place of the desired goal in a state.
    """

    achieved: slice
    desired: slice

    def rewards(self, achieved: Array, desired: Array) -> Array:
        """Return the rewards, float32 ``[B]``, of achieving goals where others, ``[B, G]`` each, are desired."""

    def terminated(self, achieved: Array, desired: Array, rewards: Array) -> Array:
        """Return True for the steps that end an episode with these goals, bool ``[B]``."""


class EpisodeEnds:
    """Last step of the episode of each transition in a buffer. It follows what is appended.

    It holds one number for each episode that ended in the transitions to draw from, and reads each transition once.

    Args:
        buffer: Replay buffer.
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer, self._num_envs = buffer, buffer.shape.num_envs
        self._known = buffer.oldest  # transitions before it have been read
        self._keys: Indices = np.zeros(0, np.int64)  # of the ends, ascending: by environment, then by step

    def last(self, indices: Indices) -> Indices:
        """Return the index of the last transition of each one's episode, int64 ``[n]``.

        That of an episode which goes on is its newest transition.

        Args:
            indices: Indices of transitions to draw from, int64 ``[n]``.
        """
        self._follow()
        envs = indices % self._num_envs
        newest = (len(self._buffer) - 1 - envs) // self._num_envs
        found = np.append(self._keys, np.iinfo(np.int64).max)[np.searchsorted(self._keys, self._keys_of(indices))]
        steps = np.minimum(found - envs * STRIDE, newest)  # the key of another environment is beyond the newest step
        return steps * self._num_envs + envs

    def _follow(self) -> None:
        """Read the ends among new transitions, and forget those before the oldest."""
        if self._known == len(self._buffer):
            return
        found = [self._keys[self._keys % STRIDE >= self._buffer.oldest // self._num_envs]]
        for first in range(max(self._known, self._buffer.oldest), len(self._buffer), SEGMENT_SIZE):
            indices = np.arange(first, min(first + SEGMENT_SIZE, len(self._buffer)))
            records = self._buffer.read(indices)
            found.append(self._keys_of(indices[records["terminated"] | records["truncated"]]))
        self._keys, self._known = np.sort(np.concatenate(found), kind="stable"), len(self._buffer)

    def _keys_of(self, indices: Indices) -> Indices:
        return indices % self._num_envs * STRIDE + indices // self._num_envs


Choose = Callable[[np.random.Generator, Indices, Indices], Indices]
"""Function from draws, the steps of transitions and the last steps of their episodes to the steps of their goals."""


def _future(rng: np.random.Generator, steps: Indices, last: Indices) -> Indices:
    return rng.integers(steps, last + 1)


def _final(rng: np.random.Generator, steps: Indices, last: Indices) -> Indices:
    del rng, steps
    return last


STRATEGIES: dict[str, Choose] = {"future": _future, "final": _final}


class HindsightReplay:
    """Draws batches of which a part is relabelled.

    A goal is what an episode achieved after a step. A relabelled transition has it as the desired goal in both of its
    states, and the environment's own reward for it. It terminates where it did, and where the environment ends an
    episode with the new goal.

    Args:
        buffer: Replay buffer.
        goals: Places and rewards of goals.
        settings: Share of relabelled transitions, and the choice of goals.
    """

    def __init__(self, buffer: ReplayBuffer, goals: Goals, settings: HindsightConfig) -> None:
        self._buffer, self._goals, self._settings = buffer, goals, settings
        self._ends, self._choose = EpisodeEnds(buffer), STRATEGIES[settings.strategy]

    def sample(self, rng: np.random.Generator, size: int, gamma: float) -> Transitions:
        """Draw single steps uniformly and with replacement; the relabelled ones come first.

        Args:
            rng: Source of the draws.
            size: B, number of transitions.
            gamma: Discount of a step.
        """
        indices = rng.integers(self._buffer.oldest, len(self._buffer), size)
        records = self._buffer.read(indices)
        num_relabelled = self._settings.num_relabelled(size)
        self._relabel(records[:num_relabelled], self._goal_indices(rng, indices[:num_relabelled]))
        return of_records(records, gamma)

    def _goal_indices(self, rng: np.random.Generator, indices: Indices) -> Indices:
        """Return the transitions whose achieved goals become the goals of others, int64 ``[n]``."""
        num_envs = self._buffer.shape.num_envs
        steps = self._choose(rng, indices // num_envs, self._ends.last(indices) // num_envs)
        return steps * num_envs + indices % num_envs

    def _relabel(self, records: Array, chosen: Indices) -> None:
        """Give transitions the goals that were achieved after the transitions with the indices ``chosen``."""
        goals = self._goals
        desired = self._buffer.read(chosen)["next_state"][:, goals.achieved]
        achieved = records["next_state"][:, goals.achieved]
        records["reward"] = rewards = goals.rewards(achieved, desired)
        records["terminated"] |= goals.terminated(achieved, desired, rewards)
        for name in ("state", "next_state"):
            records[name][:, goals.desired] = desired

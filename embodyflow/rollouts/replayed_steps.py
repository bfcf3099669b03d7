"""Every step of a recorded episode, from its replay: a record has the observations before decisions only."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from embodyflow.columns import FINAL
from embodyflow.policies.observations import entries_of, observation_fields
from embodyflow.rollouts.embodied.executable_actions import numbered_actions
from embodyflow.rollouts.replay import chunks_of, difference_of
from embodyflow.simulation.success import read_success


class ReplayError(RuntimeError):
    """The replay of an episode differs from its record; the message says where."""


def replayed_steps(env: gym.Env[Any, Any], episode: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Replay an episode and return all of its T steps.

    Args:
        env: Environment of the episode's task and split.
        episode: One row of :data:`~embodyflow.record.episodes.episode_record.Episodes`.

    Returns:
        The observations before each action, ``[T, ...]`` by name; ``action`` as the policy gave it, float32 ``[T, A]``;
        ``reward``, float32 ``[T]``; ``done`` and ``success``, bool ``[T]``.

    Raises:
        ReplayError: An observation, the length or the outcome differs from the record by a bit.
    """
    replay = _Replay(env, episode)
    for t, actions in chunks_of(episode):
        replay.require_observation(t)
        for action in actions[: int(episode["num_steps"]) - replay.num_steps]:
            replay.step(action)
    replay.require_outcome()
    return replay.columns()


class _Replay:
    """A replay in progress."""

    def __init__(self, env: gym.Env[Any, Any], episode: Mapping[str, Any]) -> None:
        self._env, self._episode, self._steps = env, episode, list[dict[str, Any]]()
        self._fields = observation_fields(env.observation_space)
        goal = int(episode["goal"])
        self._observation = self._copied(env.reset(seed=goal, options={"goal": goal})[0])
        self._over, self._success = {"terminated": False, "truncated": False}, False

    @property
    def num_steps(self) -> int:
        """Number of steps so far."""
        return len(self._steps)

    def step(self, action: np.ndarray) -> None:
        """Execute an action of the policy, float32 ``[A]``."""
        if any(self._over.values()):
            raise ReplayError(f"the replay ended after {self.num_steps} steps, the recorded episode did not")
        own = numbered_actions(self._env.action_space, action)
        observation, reward, terminated, truncated, info = self._env.step(own)
        success = read_success(info["success"])
        outcome = {
            "reward": np.float32(reward),
            "done": np.array(terminated or truncated),
            "success": np.array(success),
        }
        self._steps.append({**self._observation, "action": np.array(action), **outcome})
        self._observation, self._success = self._copied(observation), self._success or success
        self._over = {"terminated": bool(terminated), "truncated": bool(truncated)}

    def require_observation(self, t: int) -> None:
        """Raise :class:`ReplayError` unless the observation is that before decision ``t``, as far as it is recorded."""
        for name in sorted(self._observation.keys() & self._episode.keys()):
            self._require(f"{name} before decision {t}", self._observation[name], self._episode[name][t])

    def require_outcome(self) -> None:
        """Raise :class:`ReplayError` unless the episode ends as it was recorded."""
        found = {"num_steps": np.array(self.num_steps), "success": np.array(self._success)}
        found |= {name: np.array(value) for name, value in self._over.items()}
        found |= {FINAL + name: values for name, values in self._observation.items() if FINAL + name in self._episode}
        for name, value in found.items():
            self._require(name, value, self._episode[name])

    def columns(self) -> dict[str, np.ndarray]:
        """Return the steps as columns."""
        return {name: np.stack([step[name] for step in self._steps]) for name in self._steps[0]}

    def _require(self, name: str, found: np.ndarray, recorded: np.ndarray) -> None:
        if difference := difference_of(name, found, recorded):
            raise ReplayError(difference)

    def _copied(self, observation: Any) -> dict[str, np.ndarray]:
        """Return a copy of an observation, because an environment may return the same buffer at every step."""
        entries = entries_of(observation)
        return {name: np.array(entries[name], dtype) for name, (_, dtype) in self._fields.items()}

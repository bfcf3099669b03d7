"""Episodes in which an expert labels the states that the policy visits, and may take over.

DAgger (Ross et al. 2011, arXiv:1011.0686) and HG-DAgger (Kelly et al. 2019, arXiv:1810.02890).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from embodyflow.config.robots.dagger import Gate, Observation
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.data.batches import Columns
from embodyflow.errors import ConfigError
from embodyflow.policies.observations import observation_fields
from embodyflow.references import resolve
from embodyflow.rollouts.embodied.demonstrators import copied_entries, expert_action
from embodyflow.rollouts.embodied.episode_rows import Episode, continues, padded
from embodyflow.rollouts.embodied.executable_actions import recorded_actions
from embodyflow.seeding import derive_rng
from embodyflow.simulation.success import read_success
from embodyflow.simulation.vector.worker import EnvNotFiniteError

Act: TypeAlias = Callable[[Observation, int, np.ndarray], np.ndarray]
"""Function from an observation, the index of a task and the noise of a decision, float32 ``[R]``, to a chunk of
executable actions, float32 ``[C, A]``."""


@dataclass
class _Steps:
    """Columns of the steps of an episode, and its outcome."""

    observations: list[Observation] = field(default_factory=list)
    expert_actions: list[np.ndarray] = field(default_factory=list)
    labelled: list[bool] = field(default_factory=list)
    by_expert: list[bool] = field(default_factory=list)
    episode_return: float = 0.0
    success: bool = False
    terminated: bool = False
    truncated: bool = False

    @property
    def is_over(self) -> bool:
        return self.terminated or self.truncated


class EpisodeLabeller:
    """Plays episodes one after the other, and asks the expert in every state.

    Without a gate all steps are labelled, and a draw before each decision lets the expert execute it with probability
    ``beta ** iteration``; the expert then chooses each of its actions in the state before the action. With a gate the
    expert takes over the steps that the gate chooses, and labels these alone. After such a step the policy decides
    again.

    Args:
        config: Run configuration.
        envs: An environment of every task, of the split ``train``.
        act: Policy to train.
        draw_noise: Function from the seed of an episode to the noise of its decisions, float32 ``[max_steps, R]``.
    """

    def __init__(
        self,
        config: EmbodiedConfig,
        envs: Sequence[gym.Env[Any, Any]],
        act: Act,
        draw_noise: Callable[[int], np.ndarray],
    ) -> None:
        if config.dagger is None:
            raise ConfigError(
                "dagger=null: must be set (algorithm=dagger) with a pipeline that has tasks:label_episodes"
            )
        self._env_config, self._settings, self._envs = config.env, config.dagger, envs
        self._act, self._draw_noise = act, draw_noise
        self._gate: Gate | None = None if config.dagger.gate is None else resolve(config.dagger.gate)
        self._space = envs[0].action_space
        self._fields = observation_fields(envs[0].observation_space)

    def play(self, episodes: Sequence[Episode], seeds: Sequence[int], iteration: int) -> Columns:
        """Play the episodes with these seeds.

        Returns:
            For N episodes of up to T = ``env.max_steps`` steps the observations, ``[N, T, ...]`` by name;
            ``expert_actions``, float32 ``[N, T, A]``; ``labelled`` and ``by_expert``, the steps that have a label and
            those that the expert executed, bool ``[N, T]``; ``num_steps``, ``episode_return``, ``success``,
            ``terminated``, ``truncated``, ``seed`` and the ids of the episodes, ``[N]``.

        Raises:
            ConfigError: The expert returned no action, or an episode continues after ``env.max_steps``.
            EnvNotFiniteError: An observation or a reward is NaN or inf.
        """
        share = self._settings.expert_share(iteration)
        rows = [self._row(each, seed, share) for each, seed in zip(episodes, seeds, strict=True)]
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def _row(self, episode: Episode, seed: int, share: float) -> dict[str, np.ndarray]:
        steps = self._play_episode(episode, seed, share)
        columns = {
            "expert_actions": np.stack(steps.expert_actions).astype(np.float32),
            "labelled": np.array(steps.labelled),
            "by_expert": np.array(steps.by_expert),
            **{name: np.stack([each[name] for each in steps.observations]) for name in self._fields},
        }
        ids = {name: np.array(getattr(episode, name), np.int64) for name in ("uid", "group_id", "env_task_id", "goal")}
        outcome = {name: np.array(getattr(steps, name), bool) for name in ("success", "terminated", "truncated")}
        return {
            **{name: padded(values, self._env_config.max_steps) for name, values in columns.items()},
            **ids,
            **outcome,
            "seed": np.array(seed, np.int64),
            "num_steps": np.array(len(steps.labelled), np.int64),
            "episode_return": np.array(steps.episode_return, np.float32),
        }

    def _play_episode(self, episode: Episode, seed: int, share: float) -> _Steps:
        env, task, steps = self._envs[episode.env_task_id], episode.env_task_id, _Steps()
        observation, _ = env.reset(seed=episode.goal, options={"goal": episode.goal})
        entries, draws = self._copied(observation, task), derive_rng(seed, "who acts")
        for noise in self._draw_noise(seed):
            entries = self._play_chunk(task, entries, self._act(entries, task, noise), draws.random() < share, steps)
            if steps.is_over:
                return steps
        raise AssertionError("there is noise for a decision at every step")

    def _play_chunk(
        self, task: int, entries: Observation, chunk: np.ndarray, by_expert: bool, steps: _Steps
    ) -> Observation:
        """Execute a decision of the policy, or actions of the expert in its place; return the next observation."""
        for planned in chunk:
            label = expert_action(self._envs[task], self._space, self._env_config.id)
            executable = recorded_actions(self._space, label).astype(label.dtype)
            gated = self._gate is not None and bool(self._gate(entries, planned, executable))
            steps.observations.append(entries)
            steps.expert_actions.append(np.array(label))
            steps.labelled.append(self._gate is None or gated)
            steps.by_expert.append(by_expert or gated)
            entries = self._step(task, executable if by_expert or gated else planned, steps)
            # The rest of the chunk was planned for another state than the one that the expert leaves.
            if gated or steps.is_over:
                break
        return entries

    def _step(self, task: int, action: np.ndarray, steps: _Steps) -> Observation:
        """Execute an action and record its outcome; return the next observation."""
        observation, reward, terminated, truncated, info = self._envs[task].step(action)
        if not math.isfinite(reward):
            raise EnvNotFiniteError(task, "a reward")
        steps.episode_return += float(reward)
        steps.success |= read_success(info["success"])
        steps.terminated, steps.truncated = bool(terminated), bool(truncated)
        if not steps.is_over and len(steps.labelled) == self._env_config.max_steps:
            raise continues(self._env_config)
        return self._copied(observation, task)

    def _copied(self, observation: Any, task: int) -> Observation:
        return copied_entries(observation, self._fields, task)

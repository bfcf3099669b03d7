"""Episodes of a learner with an expert beside it, who labels the states that the learner visits, and may take over.

DAgger (Ross et al. 2011, arXiv:1011.0686) and HG-DAgger (Kelly et al. 2019, arXiv:1810.02890).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from embodyflow.config.robots.dagger import Gate
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.data.batches import Columns
from embodyflow.policies.observations import entries_of, observation_fields
from embodyflow.references import resolve
from embodyflow.rollouts.demonstrators import expert_action
from embodyflow.rollouts.episode_rows import Episode, padded
from embodyflow.rollouts.executable_actions import recorded_actions
from embodyflow.seeding import derive_rng

Act: TypeAlias = Callable[[dict[str, np.ndarray], int, np.ndarray], np.ndarray]
"""Function from an observation, a task and the noise of a decision, float32 ``[R]``, to a chunk of actions,
``[C, A]``."""
DrawNoise: TypeAlias = Callable[[int], np.ndarray]
"""Function from the seed of an episode to the noise of its decisions, float32 ``[max_steps, R]``."""


@dataclass
class _Steps:
    """Columns of the steps of an episode, and its outcome."""

    observations: list[dict[str, np.ndarray]] = field(default_factory=list)
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

    With a gate the expert takes over the steps that the gate names, and labels these alone; after each the learner
    makes a new decision. Without one all steps are labelled, and the expert executes whole decisions by a draw, a share
    of ``beta ** iteration``.

    Args:
        config: Run configuration.
        envs: An environment of every task, of the split ``train``.
        act: Policy that learns.
        draw_noise: Source of the policy's noise.
    """

    def __init__(
        self, config: EmbodiedConfig, envs: Sequence[gym.Env[Any, Any]], act: Act, draw_noise: DrawNoise
    ) -> None:
        assert config.dagger is not None
        self._config, self._settings, self._envs = config, config.dagger, envs
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
            ``terminated``, ``truncated`` and the ids of the episodes, ``[N]``.

        Raises:
            ConfigError: The expert returned no action.
        """
        share = self._settings.expert_share(iteration)
        rows = [self._row(each, seed, share) for each, seed in zip(episodes, seeds, strict=True)]
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def _row(self, episode: Episode, seed: int, share: float) -> dict[str, np.ndarray]:
        steps = self._play_episode(episode, seed, share)
        length = self._config.env.max_steps
        columns = {
            "expert_actions": np.stack(steps.expert_actions).astype(np.float32),
            "labelled": np.array(steps.labelled),
            "by_expert": np.array(steps.by_expert),
            **{name: np.stack([each[name] for each in steps.observations]) for name in self._fields},
        }
        ids = {name: np.int64(getattr(episode, name)) for name in ("uid", "group_id", "env_task_id", "goal")}
        outcome = {name: np.bool_(getattr(steps, name)) for name in ("success", "terminated", "truncated")}
        return {
            **{name: padded(values, length) for name, values in columns.items()},
            **{name: np.array(value) for name, value in (ids | outcome).items()},
            "seed": np.array(seed, np.int64),
            "num_steps": np.array(len(steps.labelled), np.int64),
            "episode_return": np.array(steps.episode_return, np.float32),
        }

    def _play_episode(self, episode: Episode, seed: int, share: float) -> _Steps:
        env, task = self._envs[episode.env_task_id], episode.env_task_id
        observation, _ = env.reset(seed=episode.goal, options={"goal": episode.goal})
        draws, steps = derive_rng(seed, "who acts"), _Steps()
        for noise in self._draw_noise(seed):
            entries = self._copied(observation)
            observation = self._play_chunk(env, entries, self._act(entries, task, noise), draws.random() < share, steps)
            if steps.is_over or len(steps.labelled) == self._config.env.max_steps:
                break
        return steps

    def _play_chunk(
        self, env: gym.Env[Any, Any], entries: dict[str, np.ndarray], chunk: np.ndarray, by_expert: bool, steps: _Steps
    ) -> Any:
        """Execute a decision of the learner, or actions of the expert in its place; return the next observation."""
        observation: Any = None
        for planned in chunk:
            expert = expert_action(env, self._space, self._config.env.id)
            gated = self._gate is not None and bool(self._gate(entries, planned, expert))
            steps.observations.append(entries)
            steps.expert_actions.append(np.array(expert))
            steps.labelled.append(self._gate is None or gated)
            steps.by_expert.append(by_expert or gated)
            executed = recorded_actions(self._space, expert).astype(expert.dtype) if by_expert or gated else planned
            observation, reward, steps.terminated, steps.truncated, info = env.step(executed)
            steps.episode_return += float(reward)
            steps.success |= bool(info["success"])
            # The rest of the chunk was planned for another state than the one that the expert leaves.
            if gated or steps.is_over or len(steps.labelled) == self._config.env.max_steps:
                break
            entries = self._copied(observation)
        return observation

    def _copied(self, observation: Any) -> dict[str, np.ndarray]:
        """Return the entries of an observation, copied as an environment may return the same buffer at every step."""
        entries = entries_of(observation)
        return {name: np.array(entries[name], dtype) for name, (_, dtype) in self._fields.items()}

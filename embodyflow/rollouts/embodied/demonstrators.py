"""Sources of the demonstrations that a robot policy is cloned from."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import gymnasium as gym
import numpy as np

from embodyflow.columns import FINAL
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.data.batches import Columns
from embodyflow.errors import ConfigError
from embodyflow.policies.observations import entries_of, fitted, observation_fields
from embodyflow.rollouts.embodied.episode_rows import padded
from embodyflow.rollouts.embodied.executable_actions import recorded_actions
from embodyflow.seeding import derive_rng
from embodyflow.simulation.dataset_match import chosen_episodes, open_demonstrations
from embodyflow.simulation.make_env import make_env
from embodyflow.simulation.success import read_success
from embodyflow.simulation.vector.worker import EnvNotFiniteError

Demonstration = dict[str, np.ndarray]
"""Columns of a demonstration: the observations and ``actions`` of its steps, padded with zeros to one length for all
demonstrations, ``num_steps`` and ``uid``."""

Fields: TypeAlias = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Shape and dtype of the entries of an observation by name."""


class Demonstrator(Protocol):
    """A source of demonstrations."""

    def demonstrations(self, task_id: int, numbers: Sequence[int]) -> list[Demonstration]:
        """Return the demonstrations of a task with the given numbers, from 0 to ``warm_start.num_demos`` - 1.

        Raises:
            ConfigError: The source does not have them.
        """


class ExpertDemonstrator:
    """Successful episodes of the environment's scripted expert.

    Args:
        config: Run configuration.
        action_space: Action space of the environments.
    """

    def __init__(self, config: EmbodiedConfig, action_space: gym.Space[Any]) -> None:
        assert config.warm_start is not None
        self.config, self._warm_start, self._action_space = config, config.warm_start, action_space

    def demonstrations(self, task_id: int, numbers: Sequence[int]) -> list[Demonstration]:
        """Return the demonstrations of a task with the given numbers.

        Raises:
            ConfigError: The environment has no scripted expert, or the expert fails too often.
        """
        if not numbers:
            return []
        env = make_env(self.config.env, self.config.env.tasks[task_id], "demo")
        if not callable(getattr(env.unwrapped, "expert_action", None)):
            raise ConfigError(f"env.id={self.config.env.id}: has no scripted expert; set warm_start=null")
        return [self._demonstration(env, task_id, number) for number in numbers]

    def _demonstration(self, env: gym.Env[Any, Any], task_id: int, number: int) -> Demonstration:
        """Return the demonstration of a task with the given number.

        Demonstration k of n tries goals k, k + n, k + 2n and so on, until the expert reaches one.

        Raises:
            ConfigError: The expert reaches none of the goals.
        """
        num_demos = self._warm_start.num_demos
        num_goals = env.get_wrapper_attr("num_goals")["demo"] - self._warm_start.num_held_out
        for goal in range(number, num_goals, num_demos):
            noise = derive_rng(self.config.seed, "demonstration", task_id, goal)
            demo = self._record(env, task_id, goal, noise)
            if demo is not None:
                return demo | {"uid": _uid(task_id, goal)}
        task = self.config.env.tasks[task_id]
        goals = len(range(number, num_goals, num_demos))
        raise ConfigError(
            f"warm_start.num_demos={num_demos}: the expert of {task} reached none of {goals} goals; "
            f"env.max_steps={self.config.env.max_steps} may be too small"
        )

    def _record(
        self, env: gym.Env[Any, Any], task_id: int, goal: int, noise: np.random.Generator
    ) -> Demonstration | None:
        """Record an episode of the expert with disturbed actions; return ``None`` if it fails."""
        fields = observation_fields(env.observation_space)
        observation, _ = env.reset(seed=goal, options={"goal": goal})
        observations, actions, success = [], [], False
        for _ in range(self.config.env.max_steps):
            action = expert_action(env, self._action_space, self.config.env.id)
            observations.append(copied_entries(observation, fields, task_id))
            actions.append(np.array(action))
            disturbed = action + self._warm_start.action_noise * noise.standard_normal(action.shape)
            executed = recorded_actions(self._action_space, disturbed).astype(action.dtype)
            observation, _, terminated, truncated, info = env.step(executed)
            success |= read_success(info["success"])
            if terminated or truncated:
                break
        if not success:
            return None
        columns = {name: np.stack([each[name] for each in observations]) for name in observations[0]}
        return _padded({**columns, "actions": np.stack(actions)}, self.config.env.max_steps)


def copied_entries(observation: Any, fields: Fields, index: int) -> dict[str, np.ndarray]:
    """Return the entries of an observation, copied because an environment may return the same buffer every time.

    Args:
        observation: Observation of an environment.
        fields: Shape and dtype of its entries by name.
        index: Index of the environment for errors.

    Raises:
        ValueError: An entry does not fit its space; see :func:`~embodyflow.policies.observations.fitted`.
        EnvNotFiniteError: An entry is NaN or inf.
    """
    entries = entries_of(observation)
    copies = {name: np.array(fitted(name, entries[name], *field), field[1]) for name, field in fields.items()}
    for name, values in copies.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise EnvNotFiniteError(index, f"an observation {name!r}")
    return copies


def expert_action(env: gym.Env[Any, Any], space: gym.Space[Any], env_id: str) -> np.ndarray:
    """Return the scripted expert's action in an environment's present state.

    Raises:
        ConfigError: It has another shape than the actions of ``space``, or is not finite.
    """
    expert: Any = env.unwrapped
    action, shape = np.asarray(expert.expert_action()), space.shape
    if action.shape != shape or not np.isfinite(action.astype(np.float64)).all():
        raise ConfigError(f"env.id={env_id}: expert_action() must return finite numbers {shape}, returned {action!r}")
    return action


class DatasetDemonstrator:
    """The first episodes of each task in a data set.

    Args:
        config: Run configuration.
        envs: An environment of every task, in the order of ``env.tasks``.
    """

    def __init__(self, config: EmbodiedConfig, envs: Sequence[gym.Env[Any, Any]]) -> None:
        self._source = open_demonstrations(config, envs[0])
        self._episodes = chosen_episodes(config, self._source, [env.get_wrapper_attr("instruction") for env in envs])
        longest = max(episode.num_steps for episodes in self._episodes for episode in episodes)
        self._length = max(config.env.max_steps, longest)

    def demonstrations(self, task_id: int, numbers: Sequence[int]) -> list[Demonstration]:
        """Return the episodes of a task with the given numbers.

        Raises:
            ConfigError: A file is missing or damaged, or a number is NaN or inf.
        """
        episodes = [self._episodes[task_id][number] for number in numbers]
        return [
            _padded(self._source.read(episode), self._length) | {"uid": _uid(task_id, episode.index)}
            for episode in episodes
        ]


def all_demonstrations(config: EmbodiedConfig) -> list[Demonstration]:
    """Return all demonstrations of a run's warm start, with the number of their task as ``env_task_id``.

    Raises:
        ConfigError: The source does not have them.
    """
    assert config.warm_start is not None
    with contextlib.ExitStack() as stack:
        envs = [
            stack.enter_context(contextlib.closing(make_env(config.env, each, "demo"))) for each in config.env.tasks
        ]
        source: Demonstrator = (
            ExpertDemonstrator(config, envs[0].action_space)
            if config.warm_start.dataset is None
            else DatasetDemonstrator(config, envs)
        )
        numbers = range(config.warm_start.num_demos)
        return [
            demo | {"env_task_id": np.array(task)}
            for task in range(len(envs))
            for demo in source.demonstrations(task, numbers)
        ]


def as_episodes(demonstrations: Sequence[Demonstration]) -> Columns:
    """Return demonstrations as rows of episodes with a decision per step, for rewards that embed episodes.

    A demonstration has no observation after its last action, so it ends with the one before.

    Returns:
        The observations, float32 or uint8 ``[N, T, …]``, the last of each as ``final_<name>``, ``loss_mask`` bool
        ``[N, T, 1]``, ``uid`` and ``env_task_id``.
    """
    rows = {name: np.stack([demo[name] for demo in demonstrations]) for name in demonstrations[0]}
    last = rows.pop("num_steps") - 1
    del rows["actions"]
    steps = np.arange(max(len(demo["actions"]) for demo in demonstrations))
    observed = [name for name in rows if name not in ("uid", "env_task_id")]
    final = {FINAL + name: rows[name][np.arange(len(last)), last] for name in observed}
    return rows | final | {"loss_mask": (steps < np.maximum(last, 1)[:, None])[:, :, None]}


def _padded(columns: Demonstration, length: int) -> Demonstration:
    """Return the columns of a demonstration's steps with zeros up to a length, and the number of steps."""
    num_steps = np.array(len(columns["actions"]))
    return {name: padded(values, length) for name, values in columns.items()} | {"num_steps": num_steps}


def _uid(task_id: int, number: int) -> np.ndarray:
    return np.array(task_id * 10**6 + number)

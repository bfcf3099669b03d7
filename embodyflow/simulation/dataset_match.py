"""Whether a data set of demonstrations matches an environment and a policy."""

import difflib
import logging
from collections.abc import Collection, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.config.robots.warm_start import DatasetConfig
from embodyflow.datasets.dataset import DatasetEpisode
from embodyflow.datasets.demonstrations import Column, DatasetDemonstrations
from embodyflow.datasets.feature_names import SUCCESS
from embodyflow.datasets.opening import open_dataset
from embodyflow.errors import ConfigError
from embodyflow.policies.observations import observation_fields
from embodyflow.policies.policy_registry import find_policy
from embodyflow.references import resolve

_logger = logging.getLogger(__name__)


def open_demonstrations(config: EmbodiedConfig, env: gym.Env[Any, Any]) -> DatasetDemonstrations:
    """Return the demonstrations of ``warm_start.dataset``: the observations that the policy reads, and ``actions``.

    Args:
        config: Run configuration with a data set.
        env: An environment of the run.

    Raises:
        ConfigError: There is no data set, or a column does not fit the environment; one line.
    """
    chosen, fields = dataset_of(config), observation_fields(env.observation_space)
    columns = {
        name: Column(chosen.features(name), *fields[name])
        for name in config.policy.observation_keys  # check_match has found them in the environment
    }
    columns["actions"] = Column(chosen.features("actions"), (config.policy.action_dim,), np.dtype(np.float32))
    try:
        dataset = open_dataset(chosen.path)
    except ConfigError as error:
        raise ConfigError(f"warm_start.dataset={error}") from error
    return DatasetDemonstrations(dataset, columns)


def chosen_episodes(
    config: EmbodiedConfig, demonstrations: DatasetDemonstrations, instructions: Sequence[str]
) -> list[Sequence[DatasetEpisode]]:
    """Return the episodes to clone, by task.

    Args:
        config: Run configuration with a data set.
        demonstrations: Demonstrations of the data set.
        instructions: Instruction of each task of ``env.tasks``.

    Raises:
        ConfigError: The data set has too few episodes of a task, or two tasks have the same text.
    """
    assert config.warm_start is not None
    texts, number = dataset_of(config).tasks, config.warm_start.num_demos
    tasks: dict[str, str] = {}  # by text
    for task, instruction in zip(config.env.tasks, instructions, strict=True):
        text = texts.get(task, instruction)
        if (other := tasks.setdefault(text, task)) != task:
            raise ConfigError(
                f"warm_start.dataset.tasks: {other!r} and {task!r} both take the episodes of {text!r}; allowed is a "
                "text of its own for each of env.tasks"
            )
    return [demonstrations.choose(text, number) for text in tasks]


def check_dataset(config: EmbodiedConfig, env: gym.Env[Any, Any], instructions: Sequence[str]) -> None:
    """Check that the data set of the warm start has what the run reads of it. No image is decoded.

    Args:
        config: Run configuration with a data set.
        env: An environment of the run.
        instructions: Instruction of each task of ``env.tasks``.

    Raises:
        ConfigError: A check failed; one line names the key and what is allowed.
    """
    chosen = dataset_of(config)
    _check_names("warm_start.dataset.columns", chosen.columns, ["actions", *config.policy.observation_keys])
    _check_names("warm_start.dataset.tasks", chosen.tasks, config.env.tasks)
    demonstrations = open_demonstrations(config, env)
    _check_rate(chosen, demonstrations.fps, env)
    episodes = [episode for each in chosen_episodes(config, demonstrations, instructions) for episode in each]
    if chosen.statistics == "dataset":
        _check_statistics(config, demonstrations)
        _check_units(demonstrations.statistics("actions").mean, env.action_space)
    demonstrations.check(episodes)
    if failed := demonstrations.failed(episodes):
        _logger.warning(
            "warm_start.dataset=%s: %d of the %d chosen episodes end without success (%s), such as episode %d; they "
            "are cloned like the others",
            *(chosen.path, len(failed), len(episodes), SUCCESS, failed[0].index),
        )
    if chosen.statistics == "dataset":
        for name in ("state", "actions"):
            if name == "actions" or name in config.policy.observation_keys:
                demonstrations.check_statistics(name, episodes)
    if chosen.statistics == "demonstrations":
        _check_units(demonstrations.mean("actions", episodes), env.action_space)


def _check_names(key: str, names: Collection[str], allowed: Sequence[str]) -> None:
    """Check that a section has entries of known names only.

    Raises:
        ConfigError: A name is unknown; the message has the nearest one.
    """
    for name in names:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{key}.{name}: there is no such name; allowed are {', '.join(allowed)}{meant}")


def dataset_of(config: EmbodiedConfig) -> DatasetConfig:
    """Return the section ``warm_start.dataset``, which must be set."""
    assert config.warm_start is not None and config.warm_start.dataset is not None
    return config.warm_start.dataset


def _check_rate(chosen: DatasetConfig, found: float | None, env: gym.Env[Any, Any]) -> None:
    wanted = chosen.fps or env.metadata.get("render_fps")
    if found is None or not wanted or abs(found - wanted) <= 1e-3 * wanted:
        return
    if chosen.fps is not None:
        raise ConfigError(f"warm_start.dataset.fps={chosen.fps:g}: the data set has {found:g} frames per second")
    raise ConfigError(
        f"warm_start.dataset.fps: the data set has {found:g} frames per second, the environment {wanted:g} (render_fps "
        f"of its metadata); set {found:g} if its steps take as long as the data set's"
    )


def _check_statistics(config: EmbodiedConfig, demonstrations: DatasetDemonstrations) -> None:
    """Check that there are statistics of the state and the actions, as the policy needs them."""
    if not hasattr(resolve(find_policy(config.policy.name).policy), "load_normalization"):
        raise ConfigError(
            f"warm_start.dataset.statistics=dataset: policy.name={config.policy.name} has no load_normalization; "
            "allowed is demonstrations"
        )
    if "state" in config.policy.observation_keys:
        demonstrations.statistics("state")
    if config.policy.needs_quantiles:
        for name in ("state", "actions"):
            demonstrations.quantiles(name)


def _check_units(mean: NDArray[np.float64], space: gym.Space[Any]) -> None:
    """Check that actions with this mean, ``[A]``, have the units of the environment's action space."""
    if not isinstance(space, gym.spaces.Box) or ((space.low <= mean) & (mean <= space.high)).all():
        return
    worst = int(np.argmax(np.maximum(space.low - mean, mean - space.high)))
    raise ConfigError(
        f"warm_start.dataset.columns.actions: dimension {worst} is {mean[worst]:.4g} on average, out of the "
        f"environment's bounds [{space.low[worst]:g}, {space.high[worst]:g}]; the data set has actions in other units"
    )

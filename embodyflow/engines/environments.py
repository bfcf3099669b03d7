"""One environment of a configuration."""

from typing import Any

import gymnasium as gym

from embodyflow.config import EnvConfig


def make_env(env: EnvConfig, task: str, split: str, **kwargs: Any) -> gym.Env[Any, Any]:
    """Make one environment of the configuration."""
    return gym.make(env.id, task=task, split=split, max_steps=env.max_steps, **env.kwargs, **kwargs)

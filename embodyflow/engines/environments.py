"""One environment of a configuration."""

from typing import Any

import gymnasium as gym

from embodyflow.config import EnvConfig

ADAPTER_ID = "envs:embodyflow/Adapted-v0"


def make_env(env: EnvConfig, task: str | None, split: str, **kwargs: Any) -> gym.Env[Any, Any]:
    """Make one environment of the configuration; without a task it is Gymnasium's own, and ``split`` means nothing."""
    if env.adapter is not None:
        own = {"env_id": env.id, "kwargs": {**env.kwargs, **env.adapter.task_kwargs.get(task or "", {})}}
        arguments = {**own, **env.adapter.arguments(task or ""), "split": split, "max_steps": env.max_steps}
        return gym.make(ADAPTER_ID, task=task or "", **arguments, **kwargs)
    if task is None:
        return gym.make(env.id, max_episode_steps=env.max_steps, **env.kwargs, **kwargs)
    return gym.make(env.id, task=task, split=split, max_steps=env.max_steps, **env.kwargs, **kwargs)

"""One environment of a configuration, and whether this machine can make it."""

import difflib
import importlib
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

from embodyflow.config.control import ControlConfig
from embodyflow.config.embodied import EmbodiedConfig
from embodyflow.config.environment import EnvConfig
from embodyflow.errors import ConfigError
from embodyflow.policies.fit import check_fits

EXAMPLE_ENV_ID = "envs:embodyflow/MetaWorld-v0"


def make_env(env: EnvConfig, task: str | None, split: str, **kwargs: Any) -> gym.Env[Any, Any]:
    """Make one environment of the configuration; without a task it is Gymnasium's own, and ``split`` means nothing."""
    if task is None:
        return gym.make(env.id, max_episode_steps=env.max_steps, **env.kwargs, **kwargs)
    return gym.make(env.id, task=task, split=split, max_steps=env.max_steps, **env.kwargs, **kwargs)


def check_control(config: ControlConfig) -> None:
    """Refuse an environment that cannot be made here, or that the policy does not fit.

    Raises:
        ConfigError: one line that names the key and what is allowed.
    """
    _creator(config.env)
    check_fits(config.policy, _made(config.env, None))


def check_embodied(config: EmbodiedConfig) -> None:
    """Refuse an environment that cannot be made here, or that policy, warm start and evaluation do not fit.

    Raises:
        ConfigError: one line that names the key and what is allowed.
    """
    env = config.env
    known = getattr(_creator(env), "tasks", None)
    if known is None:
        raise ConfigError(f"env.id={env.id}: is not made for policies that follow instructions: it names no tasks")
    for task in env.tasks:
        if task not in known:
            near = difflib.get_close_matches(task, known, n=3) or sorted(known)
            raise ConfigError(f"env.tasks: {task!r} is unknown; allowed are, for example, {', '.join(near[:5])}")
    made = _made(env, env.tasks[0])
    check_fits(config.policy, made)
    num_goals = made.get_wrapper_attr("num_goals")
    made.close()
    wanted = {("evaluation.num_goals", "eval"): config.evaluation.num_goals}
    if config.warm_start is not None:
        wanted["warm_start.num_demos", "demo"] = config.warm_start.num_demos
    for (key, split), number in wanted.items():
        if number > num_goals[split]:
            raise ConfigError(f"{key}={number}: allowed are 1 to {num_goals[split]}, the goals of split {split!r}")


def _made(env: EnvConfig, task: str | None) -> gym.Env[Any, Any]:
    try:
        return make_env(env, task, "train")
    except (TypeError, ValueError) as error:
        raise ConfigError(f"env.kwargs={env.kwargs}: {str(error).partition(' was raised')[0]}") from error


def _creator(env: EnvConfig) -> Any:
    return load_env_creator(_env_spec(env.id).entry_point)  # type: ignore[arg-type]


def _env_spec(env_id: str) -> EnvSpec:
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        return gym.spec(name)
    except ImportError as error:
        raise ConfigError(f"env.id={env_id}: {error}; install what it needs or correct the module's name") from error
    except gym.error.Error as error:
        raise ConfigError(
            f"env.id={env_id}: {str(error).splitlines()[0].rstrip('.')}; "
            f"allowed are an id that Gymnasium knows and module:id, such as {EXAMPLE_ENV_ID}"
        ) from error

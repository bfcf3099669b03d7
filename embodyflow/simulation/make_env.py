"""One environment of a configuration, and whether this machine can make it."""

import difflib
import importlib
import math
import re
import traceback
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator

from embodyflow.columns import COLUMNS, FINAL
from embodyflow.config.control import ControlConfig
from embodyflow.config.embodied import EmbodiedConfig
from embodyflow.config.environment import EnvConfig
from embodyflow.errors import ConfigError
from embodyflow.policies.env_match import check_match, policy_sizes
from embodyflow.policies.observations import entries_of, observation_fields

ADAPTER_ID = "envs:embodyflow/Adapted-v0"
EXAMPLE_ENV_ID = "envs:embodyflow/MetaWorld-v0"
SPLITS = ("train", "demo", "eval")


def make_env(env: EnvConfig, task: str | None, split: str, **kwargs: Any) -> gym.Env[Any, Any]:
    """Make one environment of the configuration; without a task it is Gymnasium's own, and ``split`` means nothing."""
    if env.adapter is not None:
        own = {"env_id": env.id, "kwargs": {**env.kwargs, **env.adapter.task_kwargs.get(task or "", {})}}
        arguments = {**own, **env.adapter.arguments(task or ""), "split": split, "max_steps": env.max_steps}
        return gym.make(ADAPTER_ID, task=task or "", **arguments, **kwargs)
    if task is None:
        return gym.make(env.id, max_episode_steps=env.max_steps, **{**env.kwargs, **kwargs})
    return gym.make(env.id, task=task, split=split, max_steps=env.max_steps, **{**env.kwargs, **kwargs})


def first_task(env: EnvConfig) -> str | None:
    """Return the first instruction's task, ``None`` without any."""
    return next(iter(env.tasks), None)


def check_control(config: ControlConfig) -> None:
    """Refuse an environment that cannot be made here, or that the policy does not fit.

    Raises:
        ConfigError: one line that names the key and what is allowed.
    """
    made = _made(config.env, first_task(config.env))
    check_match(config.policy, made)
    _try_a_step(config.env, made)
    made.close()


def check_embodied(config: EmbodiedConfig) -> None:
    """Refuse an environment that cannot be made here, or that policy, warm start and evaluation do not fit.

    Raises:
        ConfigError: one line that names the key and what is allowed.
    """
    env = config.env
    made = _made(env, first_task(env))
    check_match(config.policy, made)
    fields = observation_fields(made.observation_space)
    taken = COLUMNS | {FINAL + name for name in fields}
    for name in sorted(taken & fields.keys()):
        raise ConfigError(
            f"env: the observation {name!r} has a name that rows of episodes have another meaning for; "
            f"allowed is any but {', '.join(sorted(taken))}"
        )
    if config.progress is not None:
        # Images of floats are none that an embedding can read.
        seen = {name: shape for name, (shape, dtype) in fields.items() if len(shape) != 3 or dtype == np.uint8}
        config.progress.embedding.check_sees(seen)
    check_attributes(env, made)
    _try_an_episode(env, made)
    num_goals = [made.get_wrapper_attr("num_goals")]
    made.close()
    num_goals += [_check_further_task(env, task, made) for task in env.tasks[1:]]
    wanted = {("evaluation.num_goals", "eval"): config.evaluation.num_goals}
    if config.warm_start is not None:
        wanted["warm_start.num_demos", "demo"] = config.warm_start.num_demos
    for (key, split), number in wanted.items():
        fewest = min(each[split] for each in num_goals)
        if number > fewest:
            raise ConfigError(f"{key}={number}: allowed are 1 to {fewest}, the goals of split {split!r}")


def check_attributes(env: EnvConfig, made: gym.Env[Any, Any]) -> None:
    """Refuse an environment with tasks that does not say what its instruction is, or how many goals it has.

    Raises:
        ConfigError: an attribute is missing, or is something else.
    """
    found = {name: getattr(made.unwrapped, name, None) for name in ("instruction", "num_goals")}
    if not isinstance(found["instruction"], str):
        raise ConfigError(f"env.id={env.id}: its attribute instruction must be a text, is {found['instruction']!r}")
    goals = found["num_goals"]
    numbers: list[Any] = [goals.get(split) for split in SPLITS] if isinstance(goals, Mapping) else []
    if not numbers or not all(isinstance(each, Integral) for each in numbers) or numbers[0] < 1:
        raise ConfigError(
            f"env.id={env.id}: its attribute num_goals must map {', '.join(SPLITS)} to numbers of goals, some of them "
            f"to train on, is {goals!r}"
        )


def check_environment(env: EnvConfig) -> dict[str, int]:
    """Refuse an environment that cannot be made and stepped here; return the sizes of a policy for it.

    Raises:
        ConfigError: one line that names the key and what is allowed.
    """
    made = _made(env, first_task(env))
    _try_a_step(env, made)
    made.close()
    return policy_sizes(made)


def own_tasks(env_id: str) -> list[str]:
    """Return the tasks that an environment names itself, none if it is not made for policies that follow instructions.

    Raises:
        ConfigError: there is no such environment.
    """
    entry_point = _env_spec(env_id).entry_point
    tasks = getattr(entry_point if callable(entry_point) else _creator(env_id, entry_point), "tasks", None)
    # Other people's classes may mean something else by that name.
    names = tasks if isinstance(tasks, Sequence) and not isinstance(tasks, str) else ()
    return [*names] if all(isinstance(name, str) for name in names) else []


def _check_tasks(env: EnvConfig) -> None:
    """Refuse an unknown environment, and tasks that it does not have; an adapter takes any."""
    known = own_tasks(env.id)  # whether they are needed or not: an unknown environment is refused
    if not env.tasks or env.adapter is not None:
        return
    if not known:
        raise ConfigError(
            f"env.id={env.id}: is not made for policies that follow instructions: it names no tasks; "
            "say what success is by env.adapter.success_info, success_reward or success_termination"
        )
    for task in env.tasks:
        if task not in known:
            near = difflib.get_close_matches(task, known, n=3) or sorted(known)
            raise ConfigError(f"env.tasks: {task!r} is unknown; allowed are, for example, {', '.join(near[:5])}")


def _creator(env_id: str, entry_point: Any) -> Any:
    try:
        return load_env_creator(entry_point)
    except ImportError as error:
        raise ConfigError(f"env.id={env_id}: {error}; install what it needs") from error


def _check_further_task(env: EnvConfig, task: str, first: gym.Env[Any, Any]) -> Mapping[str, int]:
    """Refuse a task that cannot be made, or is not shown and acted in as the first one is; return its goals."""
    try:
        made = _made(env, task)
        shown, expected = (observation_fields(each.observation_space) for each in (made, first))
        if shown != expected or made.action_space.shape != first.action_space.shape:
            raise ConfigError(
                f"env.id={env.id}: shows {shown} and takes {made.action_space}, the first task {expected} and "
                f"{first.action_space}; allowed are tasks that one policy can do"
            )
        check_attributes(env, made)
        _try_an_episode(env, made)
        num_goals: Mapping[str, int] = made.get_wrapper_attr("num_goals")
        made.close()
        return num_goals
    except ConfigError as error:
        raise ConfigError(f"env.tasks: {task!r}: {error}") from error


def _made(env: EnvConfig, task: str | None) -> gym.Env[Any, Any]:
    _check_tasks(env)
    try:
        return make_env(env, task, "train")
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise ConfigError(f"{_culprit(env, error)}{error}; install what it needs") from error
    except (TypeError, ValueError, OSError, AssertionError, LookupError, AttributeError, RuntimeError) as error:
        # Gymnasium adds to a message whose environment it was, a KeyError's says nothing but the key.
        said = f"{type(error).__name__}: {error}" if isinstance(error, LookupError) else str(error)
        raise ConfigError(f"{_culprit(env, error)}{said.partition(' was raised')[0]}") from error
    except Exception as error:  # whatever else an environment of the user's raises is told as one line
        raise ConfigError(f"env.id={env.id}: {_said(error)}") from error


def _said(error: Exception) -> str:
    """Return what an environment of the user's raised, and where."""
    *_, last = traceback.extract_tb(error.__traceback__)
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line}, at {last.filename}:{last.lineno}"


def _culprit(env: EnvConfig, error: Exception) -> str:
    """Return the key at fault, as the beginning of a message."""
    if _named_by_adapter(env, error):
        return "env.adapter."
    about_itself = isinstance(error, ImportError) or str(error).startswith("its ")
    return f"env.id={env.id}: " if about_itself else f"env.kwargs={env.kwargs}: "


def _named_by_adapter(env: EnvConfig, error: Exception) -> bool:
    """Whether the message begins with a key of the adapter."""
    named = re.match(r"(\w+)[=.]", str(error))
    return env.adapter is not None and named is not None and named[1] in type(env.adapter).model_fields


def _try_an_episode(env: EnvConfig, made: gym.Env[Any, Any]) -> None:
    """Refuse an environment with tasks that a first step shows not to be what it says, or not to judge success."""
    info = _try_a_step(env, made, options={"goal": 0})
    if "success" not in info:
        raise ConfigError(
            f"env.id={env.id}: the info of its step() lacks 'success', by which an episode is judged; allowed without "
            "is an env.adapter that says what success is"
        )
    _check_number(env, "info['success']", info["success"])


def _try_a_step(env: EnvConfig, made: gym.Env[Any, Any], options: dict[str, Any] | None = None) -> dict[str, Any]:
    """Refuse a definition of success, of what is observed or of the expert that the first step contradicts.

    Returns:
        the step's info.
    """
    try:
        observations = [made.reset(seed=0, options=options)[0]]
        if env.adapter is not None and env.adapter.expert is not None:
            made.get_wrapper_attr("expert_action")()
        observation, reward, _, _, info = made.step(made.action_space.sample())
        observations.append(observation)
    except Exception as error:  # whatever an environment of the user's raises is told as one line
        named = _named_by_adapter(env, error)
        raise ConfigError(f"env.adapter.{error}" if named else f"env.id={env.id}: {_said(error)}") from error
    for observation in observations:
        _check_observation(env, made, observation)
    _check_number(env, "reward", reward)
    return info


def _check_number(env: EnvConfig, name: str, value: Any) -> None:
    """Refuse what a step gives as a number and is none, or is not finite."""
    try:
        is_finite = math.isfinite(value)
    except (TypeError, ValueError):
        is_finite = False
    if not is_finite:
        raise ConfigError(f"env.id={env.id}: the {name} of its step() must be a finite number, is {value!r}")


def _check_observation(env: EnvConfig, made: gym.Env[Any, Any], observation: Any) -> None:
    """Refuse an observation that is not what the environment's space says: written as such it would be another.

    Numbers of another precision, and beyond the bounds, are taken as they are.
    """
    seen = entries_of(observation)
    for name, (shape, dtype) in observation_fields(made.observation_space).items():
        if name not in seen:
            raise ConfigError(f"env.id={env.id}: its observation lacks {name!r}, which its observation_space has")
        found = np.asarray(seen[name])
        if found.shape != shape or not np.can_cast(found.dtype, dtype, "same_kind"):
            raise ConfigError(
                f"env.id={env.id}: its observation {name!r} is {found.dtype} {found.shape}, its observation_space says "
                f"{dtype} {shape}"
            )


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
            f"allowed are an id that Gymnasium knows and module:id, such as {EXAMPLE_ENV_ID} or "
            "gymnasium_robotics:FetchReach-v4"
        ) from error
    except Exception as error:  # whatever a user's module raises while it is imported is told as one line
        raise ConfigError(
            f"env.id={env_id}: cannot import module {module!r}: {type(error).__name__}: {error}"
        ) from error

"""Building one environment of a configuration, and checking that it works on this machine."""

import contextlib
import copy
import difflib
import math
import re
import traceback
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import load_env_creator

from embodyflow.columns import COLUMNS, FINAL
from embodyflow.config.robots.control import ControlConfig
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.config.robots.environment import EnvConfig, prefixed_tasks
from embodyflow.errors import ConfigError
from embodyflow.policies.env_match import check_match, one_line, policy_sizes
from embodyflow.policies.observations import entries_of, fitted, observation_fields
from embodyflow.policies.policy_section import MEMBER_SIZES
from embodyflow.process.compiler import require_cpp_compiler
from embodyflow.simulation.batched.checks import batch_sizes, check_batch, find_unrestorable_batch
from embodyflow.simulation.dataset_match import check_dataset
from embodyflow.simulation.env_spec import env_spec
from embodyflow.simulation.goal_rewards import GoalRewards
from embodyflow.simulation.member_env import MemberEnv, MemberSizes, Padding, naming_member
from embodyflow.simulation.restorability import (
    PROBE_SEED,
    FirstStep,
    Processes,
    find_unrestorable,
    first_step,
    play_first_step,
    probe_actions,
    probe_options,
    refusal,
)
from embodyflow.simulation.success import read_success

ADAPTER_ID = "envs:embodyflow/Adapted-v0"
SPLITS = ("train", "demo", "eval")
MISSING_PACKAGE = (ImportError, gym.error.DependencyNotInstalled)
"""Errors of an environment or a wrapper whose optional package is not installed."""


_PROBED: dict[str, dict[str, str]] = {}
"""Results of the probe for restorability in this process, by registration, configuration and use of processes."""

_PADDINGS: dict[str, Padding] = {}
"""Sizes of ``env.members`` by their configuration, in this process."""


class ResetOptions(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that adds options to every reset; those of the caller win.

    Args:
        env: Environment to reset.
        reset_options: Options by name; each reset receives a copy.
    """

    def __init__(self, env: gym.Env[Any, Any], reset_options: Mapping[str, Any]) -> None:
        super().__init__(env)
        self._reset_options = dict(reset_options)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment."""
        return super().reset(seed=seed, options={**copy.deepcopy(self._reset_options), **(options or {})})


class _TaskFacts(NamedTuple):
    """What an environment says of its task, after :func:`check_attributes`."""

    instruction: str
    num_goals: Mapping[str, int]

    @classmethod
    def of(cls, instance: gym.Env[Any, Any]) -> "_TaskFacts":
        """Return the facts of an environment."""
        return cls(*(instance.get_wrapper_attr(name) for name in cls._fields))


def make_env(env: EnvConfig, task: str | None, split: str, **kwargs: Any) -> gym.Env[Any, Any]:
    """Build one environment of the configuration; without a task it is plain Gymnasium, and ``split`` has no effect.

    With ``env.members`` the environment is the one of the task's member, padded to the sizes of the run.
    """
    if env.members:
        assert task is not None
        padding, (name, own) = padding_of(env), env.part_of(task)
        return MemberEnv(make_env(env.parts[name], own, split, **kwargs), list(env.members).index(name), padding)
    instance = _make(env, task, split, **kwargs)
    return ResetOptions(instance, env.reset_options) if env.reset_options else instance


def _make(env: EnvConfig, task: str | None, split: str, **kwargs: Any) -> gym.Env[Any, Any]:
    if env.adapter is not None:
        task = task or ""
        return gym.make(
            ADAPTER_ID,
            env_id=env.id,
            task=task,
            split=split,
            max_steps=env.max_steps,
            kwargs={**env.kwargs, **env.adapter.task_kwargs.get(task, {})},
            adaptation=env.adapter.adaptation(task),
            **kwargs,
        )
    if task is None:
        return gym.make(env.id, max_episode_steps=env.max_steps, **{**env.kwargs, **kwargs})
    return gym.make(env.id, task=task, split=split, max_steps=env.max_steps, **{**env.kwargs, **kwargs})


def padding_of(env: EnvConfig) -> Padding:
    """Return the sizes to which the members are padded; the first call builds an environment of each.

    Raises:
        ConfigError: A member cannot be built, or the members do not fit each other; one line names the member.
    """
    key = repr(env.members)
    if key not in _PADDINGS:
        sizes = {}
        for name, part in env.parts.items():
            with naming_member(name), contextlib.closing(_build(part, first_task(part))) as instance:
                sizes[name] = MemberSizes.of(instance)
        _PADDINGS[key] = Padding.of(sizes)
    return _PADDINGS[key]


def first_task(env: EnvConfig) -> str | None:
    """Return the first task, or ``None`` if there are no tasks."""
    return next(iter(env.tasks), None)


def goal_rewards(env: EnvConfig) -> GoalRewards:
    """Return the rewards of other goals in environments of a control job, by an environment of its own.

    Raises:
        ConfigError: The environment cannot be built here, shows no goals or has no ``compute_reward``.
    """
    return _goal_rewards_of(_build(env, None), env)


def _goal_rewards_of(instance: gym.Env[Any, Any], env: EnvConfig) -> GoalRewards:
    assert env.adapter is not None  # the configuration was refused without one
    return GoalRewards(instance, env.adapter.success_reward)


def check_control(config: ControlConfig) -> None:
    """Check that the environment can be built and stepped here, and that it fits the policy.

    With ``trainer.compile`` this machine must have a C++ compiler.

    Raises:
        ConfigError: A check failed; one line names the key and what is allowed.
    """
    if config.trainer.compile:
        require_cpp_compiler()
    if config.env.vector is not None:
        check_batch(config)
        _require_restorable(config.env, {}, _processes(config))
        return
    instance = _build(config.env, first_task(config.env))
    check_match(config.policy, instance)
    _, first = _check_step(config.env, instance)
    if config.off_policy is not None and config.off_policy.hindsight is not None:
        _goal_rewards_of(instance, config.env).check()
    instance.close()
    _require_restorable(config.env, {None: first}, _processes(config))


def check_embodied(config: EmbodiedConfig) -> None:
    """Check that the environment can be built and stepped here, and that it fits policy, warm start and evaluation.

    Raises:
        ConfigError: A check failed; one line names the key and what is allowed.
    """
    env = config.env
    instance = _build(env, first_task(env))
    check_match(config.policy, instance)
    _check_observation_space(config, instance)
    firsts: dict[str | None, FirstStep] = {}
    facts: list[_TaskFacts] = []
    for name, part in env.parts.items():
        with naming_member(name):
            first = _build(part, first_task(part)) if env.members else instance
            found, steps = _check_part(part, first, needs_expert=config.dagger is not None)
        facts += found
        firsts |= {_task_name(name, task): step for task, step in steps.items()}
    if env.members:
        instance.close()
        _check_members(config, [each.instruction for each in facts])
    _check_num_goals(config, [each.num_goals for each in facts])
    if config.warm_start is not None and config.warm_start.dataset is not None:
        check_dataset(config, instance, [each.instruction for each in facts])
    _require_restorable(env, firsts, _processes(config))


def _check_part(
    env: EnvConfig, instance: gym.Env[Any, Any], *, needs_expert: bool
) -> tuple[list[_TaskFacts], dict[str | None, FirstStep]]:
    """Check every task of one kind of environment; return what the tasks say of themselves, and their first steps.

    Args:
        env: Configuration of the environment.
        instance: Environment of the first task; it is closed.
        needs_expert: True if the environment must have a scripted expert.
    """
    check_attributes(env, instance)
    firsts: dict[str | None, FirstStep] = {first_task(env): _check_task_step(env, instance)}
    facts = [_TaskFacts.of(instance)]
    has_expert = callable(getattr(instance.unwrapped, "expert_action", None))
    instance.close()
    for task in env.tasks[1:]:
        further, firsts[task] = _check_further_task(env, task, instance)
        facts.append(further)
    if needs_expert and not has_expert:
        raise ConfigError(f"env.id={env.id}: has no scripted expert, which dagger needs")
    return facts, firsts


def _check_members(config: EmbodiedConfig, instructions: Sequence[str]) -> None:
    """Check that the policy knows the sizes of the members, and can tell their tasks apart by the instructions."""
    env, dims = config.env, padding_of(config.env).action_dims
    if config.policy.action_dims_by_member != dims:
        raise ConfigError(
            f"policy.member_action_dims={list(config.policy.action_dims_by_member or ())}: the actions of env.members "
            f"have {list(dims)} dimensions"
        )
    tasks = dict[str, str]()
    for task, instruction in zip(env.tasks, instructions, strict=True):
        other = tasks.setdefault(instruction, task)
        if env.part_of(other)[0] != env.part_of(task)[0]:
            raise ConfigError(
                f"env.members: {other!r} and {task!r} have the same instruction {instruction!r}; the policy tells "
                "members apart by it"
            )


def _task_name(name: str, task: str | None) -> str | None:
    """Return the name in the run of a member's task; that of a task without a member is its own."""
    return f"{name}/{task}" if name else task


def check_restorable(config: EmbodiedConfig | ControlConfig) -> None:
    """Check that the environments of a run to resume still restore their episodes.

    Their package may have changed since the run began.

    Raises:
        ConfigError: An environment cannot be built, or its seed does not restore an episode.
    """
    _require_restorable(config.env, {}, _processes(config))


def _processes(config: EmbodiedConfig | ControlConfig) -> Processes:
    return Processes(config.rollout.env_processes, config.rollout.isolates(len(config.env.tasks)))


def _require_restorable(env: EnvConfig, firsts: Mapping[str | None, FirstStep], processes: Processes) -> None:
    """Refuse environments that their seed does not restore, unless ``env.allow_unrestorable`` allows them."""
    for name, part in env.parts.items():
        own = {task: firsts[key] for task in (part.tasks or (None,)) if (key := _task_name(name, task)) in firsts}
        with naming_member(name):
            found = _probe(part, own, processes)
            if found and not env.allow_unrestorable:
                raise ConfigError(refusal(part, found))


def unrestorable_tasks(env: EnvConfig, num_processes: int = 0, *, isolated: bool = False) -> dict[str, str]:
    """Return the tasks whose goal 0 is not restored by its seed, each with the culprit and what differs.

    Args:
        env: Configuration of environments that :func:`check_control` or :func:`check_embodied` accepts.
        num_processes: Number of environment processes to play in; 0 plays in this process.
        isolated: True if every environment of the run has a process of its own.

    Returns:
        Lines ``<key>: <what differs>`` by task; the id of the environment stands for one without tasks.

    Raises:
        ConfigError: An environment cannot be built or played.
    """
    found: dict[str, str] = {}
    for name, part in env.parts.items():
        found |= prefixed_tasks(name, _probe(part, {}, Processes(num_processes, isolated)))
    return found


def _probe(env: EnvConfig, firsts: Mapping[str | None, FirstStep], processes: Processes) -> dict[str, str]:
    """Call :func:`find_unrestorable` once per process and environment: a command checks its configuration twice.

    Args:
        env: Configuration of the environments.
        firsts: First steps by task; those of missing tasks are played.
        processes: Environment processes of the run.
    """
    spec = env_spec(env.id)
    about = env.model_dump(exclude={"step_timeout", "reset_timeout", "max_restarts", "allow_unrestorable"})
    key = f"{spec!r} {about!r} {processes.number > 0} {processes.isolated}"
    if key not in _PROBED and env.vector is not None:
        _PROBED[key] = find_unrestorable_batch(env, processes.number)
    elif key not in _PROBED:
        tasks: Sequence[str | None] = env.tasks or (None,)
        _PROBED[key] = find_unrestorable(
            env, {task: firsts.get(task) or _first_step(env, task) for task in tasks}, make_env, processes
        )
    return _PROBED[key]


def _first_step(env: EnvConfig, task: str | None) -> FirstStep:
    with contextlib.closing(_build(env, task)) as instance:
        return play_first_step(env, instance)


def _check_observation_space(config: EmbodiedConfig, instance: gym.Env[Any, Any]) -> None:
    """Check that observations collide with no column of episodes, and that rewards can embed them."""
    fields = observation_fields(instance.observation_space)
    reserved = COLUMNS | {FINAL + name for name in fields}
    for name in sorted(reserved & fields.keys()):
        raise ConfigError(
            f"env: the observation {name!r} has the name of a column of episodes; "
            f"allowed is any name except {', '.join(sorted(reserved))}"
        )
    # An embedding cannot read images of floats.
    readable = {name: shape for name, (shape, dtype) in fields.items() if len(shape) != 3 or dtype == np.uint8}
    for section, settings in (("progress", config.progress), ("classifier", config.classifier)):
        if settings is not None:
            settings.embedding.check_observation_shapes(readable, f"{section}.embedding")


def _check_num_goals(config: EmbodiedConfig, num_goals: Sequence[Mapping[str, int]]) -> None:
    """Check that every task has as many goals as evaluation and warm start need."""
    wanted = {("evaluation.num_goals", "eval"): (config.evaluation.num_goals, 0)}
    if config.warm_start is not None and config.warm_start.dataset is None:
        wanted["warm_start.num_demos", "demo"] = config.warm_start.num_demos, config.warm_start.num_held_out
    elif config.warm_start is not None and config.warm_start.num_held_out:
        wanted["warm_start.until.num_held_out", "demo"] = config.warm_start.num_held_out, 0
    for (key, split), (number, held_out) in wanted.items():
        fewest = min(each[split] for each in num_goals) - held_out
        if number > fewest:
            rest = f" without the {held_out} of warm_start.until.num_held_out" if held_out else ""
            raise ConfigError(f"{key}={number}: allowed are 1 to {fewest}, the goals of split {split!r}{rest}")


def check_attributes(env: EnvConfig, instance: gym.Env[Any, Any]) -> None:
    """Check the attributes ``instruction`` and ``num_goals`` of an environment with tasks.

    Raises:
        ConfigError: An attribute is missing or has the wrong type.
    """
    found = {name: getattr(instance.unwrapped, name, None) for name in ("instruction", "num_goals")}
    if not isinstance(found["instruction"], str):
        raise ConfigError(f"env.id={env.id}: its attribute instruction must be a string, is {found['instruction']!r}")
    goals = found["num_goals"]
    numbers: list[Any] = [goals.get(split) for split in SPLITS] if isinstance(goals, Mapping) else []
    if not numbers or not all(isinstance(each, Integral) for each in numbers) or numbers[0] < 1:
        raise ConfigError(
            f"env.id={env.id}: its attribute num_goals must map {', '.join(SPLITS)} to numbers of goals, with at least "
            f"1 for train, is {goals!r}"
        )


def check_environment(env: EnvConfig) -> dict[str, int | list[int]]:
    """Check that an environment can be built and stepped here; return the sizes of a policy for it.

    Raises:
        ConfigError: A check failed; one line names the key and what is allowed.
    """
    if env.vector is not None:
        return batch_sizes(env)
    if env.members:
        return _check_each_member(env)
    instance = _build(env, first_task(env))
    _check_step(env, instance)
    instance.close()
    return policy_sizes(instance)


def _check_each_member(env: EnvConfig) -> dict[str, int | list[int]]:
    """Check a first step of every member; return the sizes of a policy for all of them."""
    for name, part in env.parts.items():
        with naming_member(name):
            check_environment(part)
    padding = padding_of(env)
    dims = list(padding.action_dims)
    return {"state_dim": padding.state_dim, "action_dim": padding.action_dim, MEMBER_SIZES: dims}


def declared_tasks(env_id: str) -> list[str]:
    """Return the tasks that an environment's class declares; empty if it is not made for instructions.

    Raises:
        ConfigError: There is no such environment.
    """
    entry_point = env_spec(env_id).entry_point
    if entry_point is None:  # an environment that exists as a batch only
        return []
    tasks = getattr(entry_point if callable(entry_point) else _creator(env_id, entry_point), "tasks", None)
    # A third-party class may have an attribute of this name with another meaning.
    names = tasks if isinstance(tasks, Sequence) and not isinstance(tasks, str) else ()
    return [*names] if all(isinstance(name, str) for name in names) else []


def _check_tasks(env: EnvConfig) -> None:
    """Check that the environment exists and has the tasks; an adapter takes any tasks."""
    known = declared_tasks(env.id)  # called first, because it raises for an unknown environment
    if env.adapter is not None:
        env_spec(ADAPTER_ID)
        return
    if not env.tasks:
        return
    if not known:
        raise ConfigError(
            f"env.id={env.id}: declares no tasks, so it cannot follow instructions by itself; "
            "define success by env.adapter.success_info, success_reward or success_termination"
        )
    for task in env.tasks:
        if task not in known:
            near = difflib.get_close_matches(task, known, n=3) or sorted(known)
            raise ConfigError(f"env.tasks: {task!r} is unknown; allowed are, for example, {', '.join(near[:5])}")


def _creator(env_id: str, entry_point: Any) -> Any:
    try:
        return load_env_creator(entry_point)
    except MISSING_PACKAGE as error:
        raise ConfigError(f"env.id={env_id}: {_missing_package(error)}") from error
    except Exception as error:  # a user's module may raise anything; it is reported in one line
        raise ConfigError(f"env.id={env_id}: cannot import {entry_point}: {_describe(error)}") from error


def _missing_package(error: Exception) -> str:
    """Return the first line of an error about a missing package, which often names what to install."""
    line = str(error).strip().partition("\n")[0].rstrip(".")
    return line if "install" in line else f"{line}; install the missing packages"


def _check_further_task(env: EnvConfig, task: str, first: gym.Env[Any, Any]) -> tuple[_TaskFacts, FirstStep]:
    """Check that another task works and has the spaces of the first; return its facts and its first step."""
    try:
        instance = _build(env, task)
        found, expected = (observation_fields(each.observation_space) for each in (instance, first))
        if found != expected or instance.action_space != first.action_space:
            raise ConfigError(
                f"env.id={env.id}: observes {found} and takes {one_line(instance.action_space)}, the first task "
                f"{expected} and {one_line(first.action_space)}; all tasks must have the same spaces"
            )
        check_attributes(env, instance)
        step = _check_task_step(env, instance)
        facts = _TaskFacts.of(instance)
        instance.close()
        return facts, step
    except ConfigError as error:
        raise ConfigError(f"env.tasks: {task!r}: {error}") from error


def _build(env: EnvConfig, task: str | None) -> gym.Env[Any, Any]:
    if env.members:
        return make_env(env, task, "train")  # the padding builds, and checks, an environment of each
    _check_tasks(env)
    try:
        return make_env(env, task, "train")
    except MISSING_PACKAGE as error:
        raise ConfigError(f"{_key_of(env, error)}{_missing_package(error)}") from error
    except (TypeError, ValueError, OSError, AssertionError, LookupError, AttributeError, RuntimeError) as error:
        # Gymnasium appends the environment to a message; a KeyError's message is only the key.
        message = f"{type(error).__name__}: {error}" if isinstance(error, LookupError) else str(error)
        line = message.strip().partition(" was raised")[0].partition("\n")[0]
        raise ConfigError(f"{_key_of(env, error)}{line}") from error
    except Exception as error:  # a user's environment may raise anything; it is reported in one line
        raise ConfigError(f"env.id={env.id}: {_describe(error)}") from error


def _describe(error: Exception) -> str:
    """Return the type, first line and source line of an exception from a user's environment."""
    *_, last = traceback.extract_tb(error.__traceback__)
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line}, at {last.filename}:{last.lineno}"


def _key_of(env: EnvConfig, error: Exception) -> str:
    """Return the configuration key that caused an error, as the start of a message."""
    if _names_adapter_key(env, error):
        return "env.adapter."
    about_itself = isinstance(error, MISSING_PACKAGE) or str(error).startswith("its ")
    return f"env.id={env.id}: " if about_itself else f"env.kwargs={env.kwargs}: "


def _names_adapter_key(env: EnvConfig, error: Exception) -> bool:
    """Return True if an error's message starts with a key of the adapter."""
    key = re.match(r"(\w+)[=.]", str(error))
    return env.adapter is not None and key is not None and key[1] in type(env.adapter).model_fields


def _check_task_step(env: EnvConfig, instance: gym.Env[Any, Any]) -> FirstStep:
    """Check a first step of an environment with tasks, and that its info reports success; return the step."""
    info, first = _check_step(env, instance)
    if "success" not in info:
        raise ConfigError(
            f"env.id={env.id}: the info of its step() has no 'success', which every task needs; add it, or define "
            "success by env.adapter"
        )
    try:
        read_success(info["success"])
    except ValueError as error:
        raise ConfigError(f"env.id={env.id}: the info['success'] of its step() {error}") from None
    return first


def _check_step(env: EnvConfig, instance: gym.Env[Any, Any]) -> tuple[dict[str, Any], FirstStep]:
    """Check the observations, the reward and the expert in a first step; return the step's info and the step."""
    try:
        # Copy, because an environment may return the same buffer at every step.
        observations = [copy.deepcopy(instance.reset(seed=PROBE_SEED, options=probe_options(env))[0])]
        if env.adapter is not None and env.adapter.expert is not None:
            instance.get_wrapper_attr("expert_action")()
        observation, reward, terminated, truncated, info = instance.step(probe_actions(instance.action_space)[0])
        observations.append(observation)
    except MISSING_PACKAGE as error:
        raise ConfigError(f"{_key_of(env, error)}{_missing_package(error)}") from error
    except Exception as error:  # a user's environment may raise anything; it is reported in one line
        message = f"env.adapter.{error}" if _names_adapter_key(env, error) else f"env.id={env.id}: {_describe(error)}"
        raise ConfigError(message) from error
    for observation in observations:
        _check_observation(env, instance, observation)
    _check_number(env, "reward", reward)
    return info, first_step(instance, observations, reward, terminated, truncated)


def _check_number(env: EnvConfig, name: str, value: Any) -> None:
    """Check that a value from a step is a finite number."""
    try:
        is_finite = math.isfinite(value)
    except (TypeError, ValueError):
        is_finite = False
    if not is_finite:
        raise ConfigError(f"env.id={env.id}: the {name} of its step() must be a finite number, is {value!r}")


def _check_observation(env: EnvConfig, instance: gym.Env[Any, Any], observation: Any) -> None:
    """Check that an observation matches the observation space; a silent cast would store other values.

    Another precision and values out of bounds are allowed.
    """
    entries = entries_of(observation)
    for name, (shape, dtype) in observation_fields(instance.observation_space).items():
        if name not in entries:
            raise ConfigError(f"env.id={env.id}: its observation has no {name!r}, which its observation_space has")
        try:
            fitted(name, entries[name], shape, dtype)
        except ValueError as error:
            raise ConfigError(f"env.id={env.id}: {error}") from None

"""A probe that an environment's seed restores its episodes.

Groups of episodes share an initial state, a lost process replays its episodes, and an evaluation plays the same goals
again. All of this relies on ``reset(seed=..., options=...)``: it must restore the same episode in every instance,
whatever the instance has played before. Wrappers with running statistics, such as Gymnasium's NormalizeObservation, and
draws from a global generator break it without any error.

The probe compares three plays of goal 0 with the same actions: the first step of a fresh instance, and two plays of
another fresh instance before and after a further episode. During the last play one more instance plays another goal in
the same process, as environments of a rollout do: an environment that seeds a global generator in its reset, or that
shares a simulator with others, is restored only while it is alone. The probe plays through a :class:`VectorEnv`, as the
rollout does, and in environment processes if the run has them.
"""

import copy
import functools
import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from embodyflow.config.robots.environment import EnvConfig
from embodyflow.errors import ConfigError, InfrastructureError
from embodyflow.policies.observations import entries_of, observation_fields
from embodyflow.simulation.vector.env import EnvError, EnvQuarantinedError, Supervision, VectorEnv

PROBE_SEED = 0
FEWEST_STEPS, MOST_STEPS = 4, 32
STEP_SECONDS = 0.25
"""Time after which a play stops, once it has ``FEWEST_STEPS``."""

BESIDE = "beside another environment in its process"
"""Circumstance in which an environment with global state differs."""

CHEAP_SECONDS = 0.5
"""Longest play after which the probe also plays another goal before it repeats goal 0."""

Moment = Mapping[str, npt.NDArray[Any]]
"""What an environment returns from one call: observations, and after a step also reward and flags, by name."""

MakeEnv = Callable[[EnvConfig, str | None, str], gym.Env[Any, Any]]
"""Function from configuration, task and split to an environment, as :func:`embodyflow.simulation.make_env.make_env`."""


@dataclass(frozen=True)
class FirstStep:
    """The first step of a fresh instance in goal 0.

    Attributes:
        moments: Results of the reset and of the step.
        statistics: Name of a wrapper that keeps running statistics over episodes; ``None`` without one. Steps alone may
            not show it: a reward of 0 stays 0.
        other_goal: Goal to play between the two plays of goal 0: 1, or 0 if there is no other.
    """

    moments: tuple[Moment, Moment]
    statistics: str | None
    other_goal: int


def probe_actions(space: gym.Space[Any]) -> list[Any]:
    """Return the ``MOST_STEPS`` actions that every probe of an action space executes."""
    own = copy.deepcopy(space)
    own.seed(PROBE_SEED)
    return [own.sample() for _ in range(MOST_STEPS)]


def probe_options(env: EnvConfig) -> dict[str, Any] | None:
    """Return the reset options of goal 0; ``None`` for an environment without tasks, whose seed is its goal."""
    return {"goal": 0} if env.tasks else None


def first_step(
    instance: gym.Env[Any, Any], observations: Sequence[Any], reward: Any, terminated: bool, truncated: bool
) -> FirstStep:
    """Return the first step of a fresh instance from the results of its ``reset`` and ``step``.

    Args:
        instance: Environment that was played.
        observations: Observations of the reset and of the step.
        reward: Reward of the step.
        terminated: Flag of the step.
        truncated: Flag of the step.
    """
    fields = observation_fields(instance.observation_space)
    start, end = (
        {f"observation {name!r}": np.array(entries_of(each)[name], dtype) for name, (_, dtype) in fields.items()}
        for each in observations
    )
    flags = {"terminated": np.asarray(terminated, np.bool_), "truncated": np.asarray(truncated, np.bool_)}
    num_goals = getattr(instance.unwrapped, "num_goals", None)
    other_goal = 1 if isinstance(num_goals, Mapping) and num_goals.get("train", 1) > 1 else 0
    moments = (start, {**end, "reward": np.asarray(reward, np.float32), **flags})
    return FirstStep(moments, _statistics(instance), other_goal)


@dataclass(frozen=True)
class Processes:
    """The environment processes of a run.

    Attributes:
        number: Number of processes to play in; 0 plays in this process.
        isolated: True if every environment of the run has a process of its own, so no other one plays beside it.
    """

    number: int = 0
    isolated: bool = False


def find_unrestorable(
    env: EnvConfig, firsts: Mapping[str | None, FirstStep], make: MakeEnv, processes: Processes
) -> dict[str, str]:
    """Return the tasks whose goal 0 is not restored by its seed, each with the culprit and the difference.

    Args:
        env: Configuration of the environments.
        firsts: First step of a fresh instance by task; the task ``None`` is that of an environment without tasks.
        make: Function that builds an environment.
        processes: Environment processes of the run.

    Returns:
        Lines ``<key>: <what differs>`` by task; the id of the environment stands for the task ``None``.

    Raises:
        ConfigError: An environment raised while it was played.
    """
    # Without processes of their own, one task at a time is in memory.
    parts = [firsts] if processes.number else [{task: first} for task, first in firsts.items()]
    differences: dict[str | None, str] = {}
    for part in parts:
        differences |= _differences(env, part, make, processes)
    found = {}
    for task, difference in differences.items():
        culprit = _culprit(env, task, make, processes)
        found[env.id if task is None else task] = f"{culprit}: {difference}"
    return found


def refusal(env: EnvConfig, unrestorable: Mapping[str, str]) -> str:
    """Return one line about environments that are not restored: the first task, the culprit and what to do."""
    task, line = next(iter(unrestorable.items()))
    key, _, difference = line.partition(": ")
    others = len(unrestorable) - 1
    more = f" and {others} other task{'s' if others > 1 else ''}" if others else ""
    where = f" of task {task!r}{more}" if env.tasks else ""
    return (
        f"{key}: reset(seed={PROBE_SEED}) does not restore goal 0{where}: {difference}; {remedy(line)}; "
        "env.allow_unrestorable=true trains nevertheless and says so in every report"
    )


def remedy(line: str) -> str:
    """Return the advice for a task that is not restored, from its line by :func:`find_unrestorable`."""
    if line.startswith("env.vector.resets"):
        return "make reset(seed=[…], options={'reset_mask': …}) restore each lane, or set automatic"
    if f": {BESIDE}" in line:
        return (
            "draw from self.np_random only and keep nothing outside of the instance, or give each environment a "
            "process by rollout.env_processes"
        )
    if line.startswith("env.adapter.wrappers"):
        return (
            "leave it out and normalize in the policy by policy.normalize_observations=true (rewards of a control job: "
            "policy.normalize_returns=true), or make its reset(seed=…) restore everything"
        )
    return "make its reset(seed=…) restore everything: draw from self.np_random only, and keep nothing over episodes"


def _differences(
    env: EnvConfig, firsts: Mapping[str | None, FirstStep], make: MakeEnv, processes: Processes
) -> dict[str | None, str]:
    """Return the first difference between plays of goal 0, by task; restorable tasks are left out."""
    tasks = list(firsts)
    built = tasks if processes.isolated else [*tasks, tasks[0]]
    functions = [functools.partial(make, env, task, "train") for task in built]
    try:
        with closing(
            VectorEnv(
                functions,
                chunk_size=1,
                num_workers=min(processes.number, len(tasks)),
                names=[task or "" for task in built],
                supervision=Supervision.from_config(env),
            )
        ) as vector:
            probe = _Probe(vector, env, [first.other_goal for first in firsts.values()])
            once, again = probe.play_twice()
            found: dict[str | None, str] = {}
            for k, (task, first) in enumerate(firsts.items()):
                line = difference(once[k], again[k], "after another episode")
                if line is not None and not processes.isolated:
                    line = probe.attributed(k, once[k], line)
                line = line or difference(first.moments, once[k], "in another instance")
                if line is None and first.statistics is not None:
                    line = f"{first.statistics} updates its statistics over episodes"
                if line is not None:
                    found[task] = line
            return found
    except EnvError as error:
        raise ConfigError(_failure(env, None if error.index is None else built[error.index], error)) from error
    except (EnvQuarantinedError, InfrastructureError) as error:
        raise ConfigError(f"env.id={env.id}: goal 0 cannot be played: {str(error).splitlines()[0]}") from error


class _Probe:
    """Plays of goal 0 in one environment of each task.

    Args:
        vector: Environments of the tasks, perhaps followed by one more that plays beside them.
        env: Their configuration.
        other_goals: Goal to play between two plays of goal 0, by task.
    """

    def __init__(self, vector: VectorEnv, env: EnvConfig, other_goals: Sequence[int]) -> None:
        self._vector, self._env, self._count = vector, env, len(other_goals)
        self._actions, self._options = probe_actions(vector.action_space), probe_options(env)
        self._others = [{"goal": goal} if env.tasks else None for goal in other_goals]

    def play_twice(self) -> tuple[list[list[Moment]], list[list[Moment]]]:
        """Play goal 0 of every task twice, the second time beside the further environment, if there is one.

        In between, an episode of another goal is played if that is cheap. It is played to its end if it is short,
        because some environments change something when an episode ends.
        """
        started = time.monotonic()
        once = self._play_goal(STEP_SECONDS)
        self._actions = self._actions[: max(len(moments) for moments in once) - 1]
        if time.monotonic() - started < CHEAP_SECONDS:
            whole = itertools.islice(itertools.cycle(self._actions), self._env.max_steps)
            _play(self._vector, [PROBE_SEED + 1] * self._count, self._others, list(whole), STEP_SECONDS)
        return once, self._play_goal(np.inf, is_alone=self._count == self._vector.num_envs)

    def attributed(self, k: int, once: Sequence[Moment], line: str) -> str:
        """Return the line about a difference; it names the further environment if that makes the difference."""
        alone = difference(once, self._play_goal(np.inf)[k], "after another episode")
        return alone or line.replace("after another episode", BESIDE, 1)

    def _play_goal(self, seconds: float, *, is_alone: bool = True) -> list[list[Moment]]:
        """Play goal 0 of every task, beside another goal of the further environment unless ``is_alone``."""
        seeds, options = [PROBE_SEED] * self._count, [self._options] * self._count
        if not is_alone:
            seeds, options = [*seeds, PROBE_SEED + 1], [*options, self._others[0]]
        return _play(self._vector, seeds, options, self._actions, seconds)[: self._count]


def _play(
    vector: VectorEnv,
    seeds: Sequence[int],
    options: Sequence[dict[str, Any] | None],
    actions: Sequence[Any],
    seconds: float,
) -> list[list[Moment]]:
    """Play one episode in each of the first n environments, by n seeds; return its moments, by environment."""
    open_rows = list(range(len(seeds)))
    observation = vector.reset(open_rows, seeds, options)
    played: list[list[Moment]] = [
        [{f"observation {name!r}": values[k].copy() for name, values in observation.items()}] for k in open_rows
    ]
    deadline = time.monotonic() + seconds
    for t, action in enumerate(actions):
        if not open_rows or (t >= FEWEST_STEPS and time.monotonic() > deadline):
            break
        step = vector.step(np.stack([np.asarray(action)[None]] * len(open_rows)), open_rows)
        flags = {"terminated": step.terminated, "truncated": step.truncated}
        values = {f"observation {name!r}": each for name, each in step.observation.items()}
        values |= {"reward": step.rewards[:, 0], **flags}
        for k, row in enumerate(open_rows):
            played[row].append({name: np.array(each[k]) for name, each in values.items()})
        over = step.terminated | step.truncated
        open_rows = [row for row, is_over in zip(open_rows, over, strict=True) if not is_over]
    return played


def difference(one: Sequence[Moment], other: Sequence[Moment], where: str) -> str | None:
    """Return the first difference of two plays, up to the end of the shorter one; NaN equals NaN."""
    for t, (expected, found) in enumerate(zip(one, other, strict=False)):
        for name, value in expected.items():
            if not np.array_equal(value, found[name], equal_nan=value.dtype.kind == "f"):
                moment = "the reset" if t == 0 else f"step {t}"
                return f"{where} the {name} after {moment} differs"
    return None


def _culprit(env: EnvConfig, task: str | None, make: MakeEnv, processes: Processes) -> str:
    """Return the key that names the wrappers, or the environment, whose episodes are not restored.

    A wrapper is to blame if the environment is restored without it. With several such wrappers none alone makes a
    difference; then each is tried as the only one.
    """
    wrappers = () if env.adapter is None else env.adapter.wrappers

    def restores(chosen: Sequence[str]) -> bool | None:
        """Return True if the environment is restored with these wrappers; ``None`` if it does not work with them."""
        assert env.adapter is not None
        fewer = env.model_copy(update={"adapter": env.adapter.model_copy(update={"wrappers": tuple(chosen)})})
        try:
            instance = make(fewer, task, "train")
            with closing(instance):
                first = play_first_step(fewer, instance)
            return not _differences(fewer, {task: first}, make, processes)
        except Exception:  # the environment may need the wrapper to work at all, so this says nothing
            return None

    without = [wrapper for k, wrapper in enumerate(wrappers) if restores([*wrappers[:k], *wrappers[k + 1 :]])]
    if not without and wrappers and restores(()):
        without = [wrapper for wrapper in wrappers if restores([wrapper]) is False] or list(wrappers)
    return f"env.adapter.wrappers={', '.join(without)}" if without else f"env.id={env.id}"


def play_first_step(env: EnvConfig, instance: gym.Env[Any, Any]) -> FirstStep:
    """Reset a fresh instance to goal 0, execute the first action of the probe and return the step."""
    observation, _ = instance.reset(seed=PROBE_SEED, options=probe_options(env))
    observation = copy.deepcopy(observation)  # an environment may return the same buffer at every step
    after, reward, terminated, truncated, _ = instance.step(probe_actions(instance.action_space)[0])
    return first_step(instance, [observation, after], reward, terminated, truncated)


def _statistics(instance: gym.Env[Any, Any]) -> str | None:
    """Return the name of a wrapper of Gymnasium that updates running statistics, if there is one."""
    for layer in _layers(instance):
        if isinstance(layer, NormalizeObservation | NormalizeReward) and layer.update_running_mean:
            return type(layer).__name__
    return None


def _layers(env: gym.Env[Any, Any]) -> Iterator[gym.Env[Any, Any]]:
    """Yield an environment, its wrappers and those within the adapter, from the outside."""
    layer: Any = env
    while layer is not None:
        yield layer
        within = layer.env if isinstance(layer, gym.Wrapper) else getattr(layer, "inner", None)
        layer = within if isinstance(within, gym.Env) else None


def _failure(env: EnvConfig, task: str | None, error: EnvError) -> str:
    """Return one line about an environment that raised; messages of the adapter begin with its keys."""
    line = error.details.strip().splitlines()[-1]
    message = line.partition(": ")[2]
    key = re.match(r"(\w+)[=.]", message)
    if env.adapter is not None and key is not None and key[1] in type(env.adapter).model_fields:
        return f"env.adapter.{message}"
    where = "" if task is None else f"task {task!r}: "
    return f"env.id={env.id}: {where}raised in its first steps: {line}"

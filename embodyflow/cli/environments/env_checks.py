"""The checks of ``embodyflow check-env``, each of one property that training relies on."""

import functools
import gc
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import cloudpickle  # type: ignore[import-untyped]
import gymnasium as gym
import numpy as np
import psutil
from gymnasium.spaces import Discrete
from gymnasium.utils.env_checker import check_env

from embodyflow.cli.environments.described_spaces import describe_space, entries_of_space, is_bounded
from embodyflow.config.robots.environment import EnvConfig
from embodyflow.errors import ConfigError
from embodyflow.policies.env_match import num_choices, one_line
from embodyflow.policies.observations import entries_of
from embodyflow.seeding import LARGEST_ENV_SEED
from embodyflow.simulation.frames import RENDER_ERRORS, CannotDrawError, drawing_env
from embodyflow.simulation.make_env import check_attributes, first_task, make_env, unrestorable_tasks
from embodyflow.simulation.rendering import rendering_problem
from embodyflow.simulation.restorability import remedy
from embodyflow.simulation.vector.env import VectorEnv
from embodyflow.simulation.vector.worker import ARRAY_SPACES

SEED = 7
NUM_STEPS = 40
CHUNK = 5
LEAK_MB_PER_RESET = 0.1


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        verdict: ``ok``; ``note`` for a caveat; ``FAIL`` if results would be wrong or not reproducible.
        details: Short description of the result.
        advice: Recommended action; may be empty.
    """

    verdict: Literal["ok", "note", "FAIL"]
    details: str
    advice: str = ""


Check = Callable[["Subject"], Finding]


@dataclass
class Subject:
    """The environment under test."""

    config: EnvConfig

    def make(self, **kwargs: Any) -> gym.Env[Any, Any]:
        """Build an instance."""
        return make_env(self.config, first_task(self.config), "train", **kwargs)

    def vector(self, num_workers: int) -> VectorEnv:
        """Build a vector environment with one instance."""
        function = functools.partial(make_env, self.config, first_task(self.config), "train")
        return VectorEnv([function], chunk_size=CHUNK, num_workers=num_workers)

    @functools.cached_property
    def actions(self) -> np.ndarray:
        """The actions that all checks execute, ``[NUM_STEPS, *action_shape]``."""
        env = self.make()
        space = env.action_space
        env.close()
        if not isinstance(space, ARRAY_SPACES):
            raise ConfigError(
                f"env.id={self.config.id}: actions must be a Box, Discrete, MultiDiscrete or MultiBinary, not "
                f"{one_line(space)}; a wrapper can convert them"
            )
        space.seed(SEED)
        return np.stack([space.sample() for _ in range(NUM_STEPS)])


def _gymnasium(subject: Subject) -> Finding:
    env = subject.make()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env.unwrapped, skip_render_check=True)
    env.close()
    messages = [str(warning.message).replace("\x1b[33mWARN: ", "").replace("\x1b[0m", "") for warning in caught]
    if messages:
        more = f" (and {len(messages) - 1} more)" if len(messages) > 1 else ""
        return Finding("note", f"warning: {messages[0].splitlines()[0]}{more}")
    return Finding("ok", "no warnings")


def _seeded_reset(subject: Subject) -> Finding:
    one, other = subject.make(), subject.make()
    first = _bytes(one.reset(seed=SEED)[0])
    again, elsewhere = _bytes(one.reset(seed=SEED)[0]), _bytes(other.reset(seed=SEED)[0])
    different = _bytes(one.reset(seed=LARGEST_ENV_SEED)[0])
    one.close()
    other.close()
    if not first == again == elsewhere:
        return Finding(
            "FAIL",
            "reset(seed=7) gives different initial states",
            "draw from self.np_random after super().reset(seed=seed); set a seed in env.kwargs if it accepts one",
        )
    if first == different:
        return Finding("note", "every seed gives the same initial state", "all groups will start from this state")
    return Finding("ok", "the initial state depends on the seed, and on nothing else")


def _goals(subject: Subject) -> Finding:
    """Check the interface of an environment that names its own tasks; otherwise the adapter provides it."""
    config, task = subject.config, first_task(subject.config)
    if task is None or config.adapter is not None:
        return Finding("ok", "provided by the adapter" if task else "not needed: the environment names no tasks")
    starts = {}
    for split in ("train", "eval"):
        env = make_env(config, task, split)
        try:
            check_attributes(config, env)
        except ConfigError as error:
            return Finding("FAIL", str(error), "see embodyflow/environments/metaworld.py")
        goals = range(min(2, *env.get_wrapper_attr("num_goals").values()))
        starts[split] = [_bytes(env.reset(seed=goal, options={"goal": goal})[0]) for goal in goals]
        info = env.step(subject.actions[0].copy())[-1]
        is_too_long = _exceeds_max_steps(env, subject)
        env.close()
    if "success" not in info:
        return Finding("FAIL", "info has no 'success'", "set info['success'] in every step, true on success")
    if is_too_long:
        return Finding("FAIL", f"an episode continues after max_steps={config.max_steps}", "truncate it there")
    if starts["train"] == starts["eval"]:
        return Finding(
            "FAIL",
            "evaluation starts from the initial states of training",
            "choose the initial state by split and goal",
        )
    return Finding("ok", "evaluation has its own initial states")


def _exceeds_max_steps(env: gym.Env[Any, Any], subject: Subject) -> bool:
    """Return True if an episode continues after ``max_steps``; an environment with tasks must truncate it itself."""
    env.reset(seed=SEED)
    for t in range(subject.config.max_steps):
        _, _, terminated, truncated, _ = env.step(subject.actions[t % NUM_STEPS].copy())
        if terminated or truncated:
            return False
    return True


def _determinism(subject: Subject) -> Finding:
    one, other = subject.make(), subject.make()
    same = _play(one, subject.actions) == _play(other, subject.actions)
    one.close()
    other.close()
    if same:
        return Finding("ok", f"{NUM_STEPS} steps are bit-identical in two instances")
    return Finding(
        "FAIL", "the same seed and actions give different results", "look for draws from random or numpy.random"
    )


def _spaces(subject: Subject) -> Finding:
    """Report the environment's own spaces, within the adapter, and how far they are bounded."""
    env = subject.make()
    own = getattr(env.unwrapped, "inner", env) if subject.config.adapter is not None else env
    seen = [f"{name} {describe_space(space)}" for name, space in entries_of_space(own.observation_space).items()]
    details = f"actions {describe_space(own.action_space)}; observes {', '.join(seen)}"
    env.close()
    if isinstance(own.action_space, Discrete):
        return Finding("note", details, "policy=tiny_vla or mlp_categorical chooses among them")
    if num_choices(own.action_space) is not None:
        return Finding("note", details, "policy=tiny_vla chooses among them; control jobs need a Box or Discrete")
    if not is_bounded(own.action_space):
        return Finding("note", details, "embodied jobs need actions with finite bounds; a wrapper can set them")
    return Finding("ok", details)


def _success(subject: Subject) -> Finding:
    """Check that the key of success exists in some step, since ``success_absent=not_yet`` accepts a misspelt one."""
    adapter = subject.config.adapter
    if adapter is None or not adapter.defines_success:
        return Finding("ok", "not defined by an adapter; a control job needs none")
    if adapter.success_absent == "refuse":
        return Finding("ok", "needed in every step" if adapter.success_info else "defined in every step")
    strict = adapter.model_copy(update={"success_absent": "refuse"})
    env = make_env(subject.config.model_copy(update={"adapter": strict}), first_task(subject.config), "train")
    env.reset(seed=SEED)
    present = 0
    for action in subject.actions:
        try:
            _, _, terminated, truncated, _ = env.step(action.copy())
            present += 1
        except ValueError:  # this step lacks the key; the episode continues
            continue
        if terminated or truncated:
            break
    env.close()
    details = f"info had {adapter.success_info!r} in {present} of {NUM_STEPS} steps"
    if present == 0:
        return Finding("note", details, "the run never succeeds if adapter.success_info is misspelt")
    return Finding("ok", details)


def _restore(subject: Subject) -> Finding:
    for task, line in unrestorable_tasks(subject.config).items():
        return Finding("FAIL", f"{task}: {line}", remedy(line))
    env = subject.make()
    first = _play(env, subject.actions)
    env.reset(seed=SEED + 1)
    env.step(subject.actions[-1])
    same = first == _play(env, subject.actions)
    env.close()
    if same:
        return Finding("ok", "an episode can be repeated from its seed after other episodes")
    return Finding(
        "FAIL", "an episode depends on the one before", "restore everything in reset: model, warm start, caches"
    )


def _pickling(subject: Subject) -> Finding:
    cloudpickle.loads(cloudpickle.dumps(subject.config))
    seen = []
    for num_workers in (0, 1):
        with subject.vector(num_workers) as env:
            start = env.reset(seeds=[SEED])
            seen.append((_bytes(start), _bytes(env.step(subject.actions[None, :CHUNK]).observation)))
    if seen[0] == seen[1]:
        return Finding("ok", "another process builds it and gets the same results")
    return Finding(
        "FAIL", "another process gets other results", "look for state that depends on the process: hash(), time"
    )


def _chunks(subject: Subject) -> Finding:
    env = subject.make()
    single = _play(env, subject.actions)
    env.close()
    with subject.vector(num_workers=0) as vector:
        vector.reset(seeds=[SEED])
        done = 0
        while done < len(single) - 1:
            step = vector.step(subject.actions[None, done : done + CHUNK])
            rewards = step.rewards[0, : step.num_steps[0]].tolist()
            done += len(rewards)
            expected = [float(np.float32(reward)) for _, reward in single[done + 1 - len(rewards) : done + 1]]
            if rewards != expected or _bytes({k: v[0] for k, v in step.observation.items()}) != single[done][0]:
                return Finding(
                    "FAIL", "a chunk differs from its single steps", "step() must not keep or change its argument"
                )
    return Finding("ok", f"chunks of {CHUNK} actions equal single steps")


def _render(subject: Subject) -> Finding:
    problem = rendering_problem()
    if problem is not None:
        return Finding("note", f"skipped: {problem}", "see embodyflow doctor")
    frames = []
    try:
        with drawing_env(subject.config, first_task(subject.config), "train") as env:
            env.reset(seed=SEED)
            started = time.perf_counter()
            frames = [env.render() for _ in range(5)]
            milliseconds = 200 * (time.perf_counter() - started)
    except (CannotDrawError, *RENDER_ERRORS) as error:
        return Finding("note", f"cannot render: {str(error).partition(chr(10))[0]}", "runs have no videos")
    if frames[-1] is None:
        return Finding("note", "cannot render: render() returns nothing", "runs have no videos")
    frame = np.asarray(frames[-1])
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        return Finding("FAIL", f"a frame is {frame.dtype} {frame.shape}", "return uint8 [H, W, 3]")
    if frame.min() == frame.max():
        return Finding("FAIL", "a frame has a single color", "see embodyflow doctor")
    return Finding("ok", f"{frame.shape[1]} × {frame.shape[0]} in {milliseconds:.0f} ms")


def _leak(subject: Subject) -> Finding:
    env, process = subject.make(), psutil.Process()

    def resets(seconds: float, most: int) -> int:
        deadline, done = time.monotonic() + seconds, 0
        while done < most and time.monotonic() < deadline:
            env.reset(seed=done)
            env.step(subject.actions[0])
            done += 1
        gc.collect()
        return done

    resets(2.0, 100)
    before = process.memory_info().rss
    done = resets(6.0, 400)
    grown = (process.memory_info().rss - before) / 2**20
    env.close()
    details = f"{grown:+.1f} MB over {done} resets"
    if done >= 10 and grown / done > LEAK_MB_PER_RESET:
        return Finding("FAIL", details, "free what reset allocates: renderers, models, handles")
    return Finding("ok", details)


def _speed(subject: Subject) -> Finding:
    process = psutil.Process()
    before = process.memory_info().rss
    started = time.perf_counter()
    env = subject.make()
    built = time.perf_counter() - started
    started = time.perf_counter()
    env.reset(seed=SEED)
    reset = time.perf_counter() - started
    steps, started = 0, time.perf_counter()
    while time.perf_counter() - started < 2.0:
        _, _, terminated, truncated, _ = env.step(subject.actions[steps % NUM_STEPS])
        steps += 1
        if terminated or truncated:
            env.reset(seed=steps)
    rate = steps / (time.perf_counter() - started)
    memory = (process.memory_info().rss - before) / 2**20
    env.close()
    details = (
        f"{rate:.0f} steps/s, built in {built:.1f} s, reset in {1000 * reset:.0f} ms, {max(memory, 0):.0f} MB more"
    )
    if reset * rate > 200:
        return Finding("note", details, "a reset costs more than 200 steps: restore a state instead of rebuilding")
    return Finding("ok", details)


CHECKS: dict[str, Check] = {
    "gymnasium": _gymnasium,
    "spaces": _spaces,
    "seeded reset": _seeded_reset,
    "goals": _goals,
    "success": _success,
    "determinism": _determinism,
    "restore by seed": _restore,
    "pickling": _pickling,
    "chunks": _chunks,
    "render": _render,
    "leak": _leak,
    "speed": _speed,
}


def _play(env: gym.Env[Any, Any], actions: np.ndarray) -> list[tuple[bytes, float]]:
    """Play an episode from the seed; return observation and reward of each step, starting with the reset and 0."""
    steps = [(_bytes(env.reset(seed=SEED)[0]), 0.0)]
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action.copy())
        steps.append((_bytes(observation), float(reward)))
        if terminated or truncated:
            break
    return steps


def _bytes(observation: Any) -> bytes:
    entries = entries_of(observation)
    return b"".join(key.encode() + np.ascontiguousarray(entries[key]).tobytes() for key in sorted(entries))

"""Replay of an episode from its initial state and its actions."""

import functools
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio.v3 as iio
import numpy as np

from embodyflow.columns import FINAL
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.rollouts.embodied.executable_actions import numbered_actions
from embodyflow.simulation.frames import CannotDrawError, drawing_env, frame_of
from embodyflow.simulation.make_env import make_env
from embodyflow.simulation.rendering import rendering_problem
from embodyflow.simulation.vector.env import VectorEnv

FRAMES_PER_SECOND = 10
"""Frame rate of animations. A frame is a decision, so the environment's own time step does not matter."""


def first_difference(config: EmbodiedConfig, episode: Mapping[str, Any], split: str = "train") -> str | None:
    """Replay an episode and compare it with its record, bit for bit.

    The environment is built and stepped as in the rollout. Images are not recorded, so they are not compared.

    Args:
        config: Run configuration.
        episode: One row of :data:`~embodyflow.record.episodes.episode_record.Episodes`.
        split: Split of the episode's goal.

    Returns:
        A description of the first difference, or ``None`` if the replay is bit-identical.
    """
    task = config.env.tasks[int(episode["env_task_id"])]
    make = functools.partial(make_env, config.env, task, split)
    total = np.zeros((), np.float32)
    success, over = False, {"terminated": False, "truncated": False}
    num_steps = 0
    chunk_size = episode["actions"].shape[1]
    with closing(VectorEnv([make], chunk_size=chunk_size, info_keys=("success",))) as env:
        goal = int(episode["goal"])
        observation = env.reset([0], seeds=[goal], options=[{"goal": goal}])
        for t, actions in chunks_of(episode):
            for name in sorted(observation.keys() & episode.keys()):
                if problem := difference_of(f"{name} before decision {t}", observation[name][0], episode[name][t]):
                    return problem
            if any(over.values()):
                return f"decision {t}: the replay ended before it, the recorded episode did not"
            step = env.step(numbered_actions(env.action_space, actions[None]), [0])
            observation, over = step.observation, {"terminated": step.terminated[0], "truncated": step.truncated[0]}
            num_steps += int(step.num_steps[0])
            total += step.rewards.sum(axis=1)[0]
            success |= bool(step.infos["success"][0].any())
    found = {"num_steps": num_steps, "episode_return": total, "success": success, **over}
    found |= {FINAL + name: values[0] for name, values in observation.items() if FINAL + name in episode}
    differences = (difference_of(name, np.asarray(value), episode[name]) for name, value in found.items())
    return next(filter(None, differences), None)


def film(config: EmbodiedConfig, episode: Mapping[str, Any], path: Path, split: str = "train") -> str | None:
    """Render an episode as an animation, one frame per decision.

    Returns:
        The reason why this machine or this environment cannot render, or ``None`` after success.
    """
    if problem := rendering_problem():
        return problem
    try:
        frames = frames_of(config, episode, split)
    except CannotDrawError as error:
        return str(error)
    iio.imwrite(path, frames, duration=1000 / FRAMES_PER_SECOND, loop=0)
    return None


def frames_of(
    config: EmbodiedConfig, episode: Mapping[str, Any], split: str, max_frames: int | None = None
) -> list[np.ndarray]:
    """Replay an episode and render frames; see :func:`frames_in`.

    Raises:
        CannotDrawError: The environment cannot render.
    """
    with drawing_env(config.env, config.env.tasks[int(episode["env_task_id"])], split) as env:
        return frames_in(env, config, episode, max_frames)


def frames_in(
    env: gym.Env[Any, Any], config: EmbodiedConfig, episode: Mapping[str, Any], max_frames: int | None = None
) -> list[np.ndarray]:
    """Replay an episode and render frames, uint8 ``[H, W, 3]``: one before every decision and one after the last.

    Args:
        env: Environment of the episode's task and split that renders.
        config: Run configuration.
        episode: One row of :data:`~embodyflow.record.episodes.episode_record.Episodes`.
        max_frames: Largest number of frames, evenly spaced from the first to the last; ``None`` for all.

    Raises:
        CannotDrawError: The environment cannot render.
    """
    chunks = [actions for _, actions in chunks_of(episode)]
    num_frames = len(chunks) + 1
    chosen = set(np.linspace(0, num_frames - 1, min(max_frames or num_frames, num_frames)).round().astype(int).tolist())
    env.reset(seed=int(episode["goal"]), options={"goal": int(episode["goal"])})
    frames, steps_left = [frame_of(config.env, env)], int(episode["num_steps"])
    for decision, actions in enumerate(chunks, start=1):
        for action in numbered_actions(env.action_space, actions[:steps_left]):
            env.step(action)
        steps_left -= min(steps_left, len(actions))
        if decision in chosen:
            frames.append(frame_of(config.env, env))
    return frames


def chunks_of(episode: Mapping[str, Any]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the number of each decision of an episode and its actions, float32 ``[C, A]``."""
    for t in np.flatnonzero(episode["loss_mask"].any(axis=-1)).tolist():
        yield t, episode["actions"][t]


def difference_of(name: str, found: np.ndarray, recorded: np.ndarray) -> str | None:
    """Return a description of a replay's first difference from the record; ``None`` if it is bit-identical."""
    if np.array_equal(found, recorded, equal_nan=found.dtype.kind == "f"):
        return None
    if np.ndim(recorded) == 0:
        return f"{name}: {found} now, {recorded} on record"
    entry = int(np.flatnonzero(found != recorded)[0])
    return f"{name}, entry {entry}: {found.flat[entry]} now, {recorded.flat[entry]} on record"

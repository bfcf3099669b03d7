"""An episode played again, by its initial state and its actions."""

import functools
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np

from embodyflow.columns import FINAL
from embodyflow.config.embodied import EmbodiedConfig
from embodyflow.simulation.frames import CannotDrawError, drawing_env, frame_of
from embodyflow.simulation.make_env import make_env
from embodyflow.simulation.rendering import rendering_problem
from embodyflow.simulation.vector_env import VectorEnv

FRAMES_PER_SECOND = 10
"""Of animated pictures, whatever the environment's own time: a frame is a decision."""


def first_difference(config: EmbodiedConfig, episode: Mapping[str, Any], split: str = "train") -> str | None:
    """Play an episode again and compare it with its record, to the bit.

    The environment and the way it is stepped are those of the rollout. Images are not in the record and not compared.

    Args:
        config: of the run.
        episode: one row of :data:`~embodyflow.record.episode_record.Episodes`.
        split: whose goal it has.

    Returns:
        What is the first to differ, and where; ``None`` where nothing does.
    """
    task = config.env.tasks[int(episode["env_task_id"])]
    make = functools.partial(make_env, config.env, task, split)
    total = np.zeros((), np.float32)
    success, over = False, {"terminated": False, "truncated": False}
    num_steps = 0
    with closing(VectorEnv([make], chunk_size=config.policy.chunk_size, info_keys=("success",))) as env:
        goal = int(episode["goal"])
        observation = env.reset([0], seeds=[goal], options=[{"goal": goal}])
        for t, actions in _chunks(episode):
            for name in sorted(observation.keys() & episode.keys()):
                if problem := _difference(f"{name} before decision {t}", observation[name][0], episode[name][t]):
                    return problem
            if any(over.values()):
                return f"decision {t}: the episode is over before it; on record it is not"
            step = env.step(actions[None], [0])
            observation, over = step.observation, {"terminated": step.terminated[0], "truncated": step.truncated[0]}
            num_steps += int(step.num_steps[0])
            total += step.rewards.sum(axis=1)[0]
            success |= bool(step.infos["success"][0].any())
    found = {"num_steps": num_steps, "episode_return": total, "success": success, **over}
    found |= {FINAL + name: values[0] for name, values in observation.items() if FINAL + name in episode}
    differences = (_difference(name, np.asarray(value), episode[name]) for name, value in found.items())
    return next(filter(None, differences), None)


def film(config: EmbodiedConfig, episode: Mapping[str, Any], path: Path, split: str = "train") -> str | None:
    """Draw an episode into an animated picture, one frame per decision.

    Returns:
        Why it could not be rendered on this machine, or of this environment, or ``None``.
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
    config: EmbodiedConfig, episode: Mapping[str, Any], split: str, most: int | None = None
) -> list[np.ndarray]:
    """Play an episode again and draw it, uint8 ``[H, W, 3]`` each: before every decision and after the last.

    With ``most`` only so many of these frames are drawn, evenly from the first to the last.

    Raises:
        CannotDrawError: the environment does not draw itself.
    """
    chunks = [actions for _, actions in _chunks(episode)]
    number = len(chunks) + 1
    wanted = set(np.linspace(0, number - 1, min(most or number, number)).round().astype(int).tolist())
    task = config.env.tasks[int(episode["env_task_id"])]
    with drawing_env(config.env, task, split) as env:
        env.reset(seed=int(episode["goal"]), options={"goal": int(episode["goal"])})
        frames, left = [frame_of(config.env, env)], int(episode["num_steps"])
        for decision, actions in enumerate(chunks, start=1):
            for action in actions[:left]:
                env.step(action)
            left -= min(left, len(actions))
            if decision in wanted:
                frames.append(frame_of(config.env, env))
    return frames


def _chunks(episode: Mapping[str, Any]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the episode's decisions: their number and their actions, float32 ``[C, A]``."""
    for t in np.flatnonzero(episode["loss_mask"].any(axis=-1)).tolist():
        yield t, episode["actions"][t]


def _difference(what: str, found: np.ndarray, recorded: np.ndarray) -> str | None:
    if np.array_equal(found, recorded, equal_nan=found.dtype.kind == "f"):
        return None
    if np.ndim(recorded) == 0:
        return f"{what}: {found} now, {recorded} on record"
    entry = int(np.flatnonzero(found != recorded)[0])
    return f"{what}, entry {entry}: {found.flat[entry]} now, {recorded.flat[entry]} on record"

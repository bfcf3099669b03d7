"""``embodyflow export-dataset``: the recorded episodes of a run as a LeRobot data set."""

import json
import math
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from embodyflow.cli.episodes.episode_list import EpisodeFilter, check_task, is_chosen, open_episodes
from embodyflow.cli.episodes.episode_tables import EpisodeRow, episode_row
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.datasets.feature_names import ACTION, IMAGES
from embodyflow.datasets.lerobot.writer import DatasetDescription, LeRobotWriter
from embodyflow.datasets.packages import require
from embodyflow.errors import ConfigError
from embodyflow.record.episodes.episode_record import read_episodes
from embodyflow.record.run_folder import RunFolder
from embodyflow.rollouts.replayed_steps import ReplayError, replayed_steps
from embodyflow.simulation.make_env import make_env

SOURCE = "meta/embodyflow.json"
"""File of a data set that says which episode of the run each of its episodes is."""


@dataclass(frozen=True)
class ExportOptions:
    """How to write a data set.

    Attributes:
        output: Folder to write; ``None`` is ``dataset`` in the run's folder.
        images: Kind of files for images: ``video``, mp4 files, or ``png``, which loses nothing.
        fps: Frames per second; ``None`` is ``render_fps`` of the environment's metadata.
    """

    output: Path | None = None
    images: Literal["video", "png"] = "video"
    fps: float | None = None


def export_dataset(path: Path, chosen: EpisodeFilter, options: ExportOptions) -> int:
    """Replay episodes of a run and write all of their steps as a LeRobot data set, version v3.0.

    Args:
        path: Folder of the run.
        chosen: Episodes to write.
        options: How to write them.

    Returns:
        0, or 1 if a replay differs from its record; then there is no data set.

    Raises:
        ConfigError: There is no such run, no episode is chosen, the folder exists, or a package is missing.
    """
    folder, config = open_episodes(path)
    if not isinstance(config, EmbodiedConfig):
        raise ConfigError(f"{path}: is a run with job={config.job}; allowed are runs with job=embodied")
    check_task(chosen, config.env.tasks)
    if unrestorable := folder.unrestorable():
        raise ConfigError(
            f"{path}: has episodes that cannot be replayed, because their seed does not restore "
            f"{', '.join(unrestorable)} (env.allow_unrestorable); allowed are runs of other tasks"
        )
    output = path / "dataset" if options.output is None else options.output
    if os.path.lexists(output):  # a link that leads nowhere too
        raise ConfigError(f"--output={output}: exists; allowed is a new folder")
    for module in ("pyarrow", "pandas"):
        require(module)
    episodes = list(_chosen(folder, config, chosen))
    if not episodes:
        raise ConfigError(f"{path}: no episode is chosen; embodyflow episodes {shlex.quote(str(path))} lists them")
    try:
        with _appearing(output) as unfinished:
            num_steps = _write(config, episodes, options, unfinished)
    except ReplayError as error:
        print(f"replay: differs from the record; {error}", file=sys.stderr)
        return 1
    print(f"{output}: {len(episodes)} episodes, {num_steps} steps")
    return 0


@contextmanager
def _appearing(output: Path) -> Iterator[Path]:
    """Yield a folder that gets its name at the end of the block; if the block fails or is stopped, it is removed.

    Raises:
        ConfigError: The folder cannot be created, which is found before the block, or another command has created it.
    """
    unfinished = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(unfinished, ignore_errors=True)  # left by a killed process of this id
        unfinished.mkdir()
    except OSError as error:
        raise ConfigError(f"--output={output}: cannot be created: {error.strerror}") from error
    try:
        yield unfinished
        try:
            os.rename(unfinished, output)
        except OSError as error:
            raise ConfigError(f"--output={output}: cannot be created: {error.strerror}") from error
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _chosen(folder: RunFolder, config: EmbodiedConfig, chosen: EpisodeFilter) -> Iterator[tuple[int, EpisodeRow]]:
    """Yield the iteration and the row of each chosen episode, oldest first.

    A group that dynamic sampling leaves over is recorded in two iterations, and yielded once.
    """
    seen: set[int] = set()
    for iteration, episodes in read_episodes(folder):
        for row in range(len(episodes["uid"])):
            episode = episode_row(episodes, row)
            is_new = int(episode["uid"]) not in seen and chosen.iteration in (None, iteration)
            if is_new and is_chosen(chosen, config.env.tasks, episode):
                seen.add(int(episode["uid"]))
                yield iteration, episode


class _Replays:
    """Replays of recorded episodes.

    Args:
        config: Run configuration.
    """

    def __init__(self, config: EmbodiedConfig) -> None:
        self._config, self._envs = config, dict[int, gym.Env[Any, Any]]()

    def env(self, task_id: int) -> gym.Env[Any, Any]:
        """Return the environment of a task; the first call builds it."""
        if task_id not in self._envs:
            self._envs[task_id] = make_env(self._config.env, self._config.env.tasks[task_id], "train")
        return self._envs[task_id]

    def features(self, episode: EpisodeRow) -> dict[str, np.ndarray]:
        """Return an episode's steps by LeRobot's names.

        Raises:
            ReplayError: The replay differs from the record.
        """
        try:
            return _features(replayed_steps(self.env(int(episode["env_task_id"])), episode))
        except ReplayError as error:
            raise ReplayError(f"episode {episode['uid']}: {error}") from error

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs.values():
            env.close()


def _write(config: EmbodiedConfig, episodes: Sequence[tuple[int, EpisodeRow]], options: ExportOptions, to: Path) -> int:
    """Write the data set to a folder; return the number of its steps."""
    sources: list[dict[str, Any]] = []
    num_steps = 0
    with closing(_Replays(config)) as replays:
        fps = _fps(options, replays.env(int(episodes[0][1]["env_task_id"])))
        writer = LeRobotWriter(to, DatasetDescription(fps, config.env.id, options.images))
        for iteration, episode in episodes:
            features = replays.features(episode)
            writer.add(replays.env(int(episode["env_task_id"])).get_wrapper_attr("instruction"), features)
            num_steps += len(features[ACTION])
            facts = {name: episode[name].item() for name in ("uid", "goal", "success")}
            sources.append({"episode_index": len(sources), "iteration": iteration, **facts})
    writer.finish()
    source = {"run": config.run_id, "env": config.env.id, "episodes": sources}
    (to / SOURCE).write_text(json.dumps(source, indent=4) + "\n")
    return num_steps


def _fps(options: ExportOptions, env: gym.Env[Any, Any]) -> float:
    if options.fps is not None and not 0 < options.fps < math.inf:
        raise ConfigError(f"--fps={options.fps:g}: must be above 0")
    fps = options.fps or env.metadata.get("render_fps")
    if not fps:
        raise ConfigError("--fps: must be set, because the environment's metadata has no render_fps")
    return float(fps)


def _features(steps: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the features of a data set from the columns of replayed steps."""
    return {_name(name, values): values if values.ndim == 4 else _flat(values) for name, values in steps.items()}


def _name(column: str, values: np.ndarray) -> str:
    """Return LeRobot's name of a column of replayed steps."""
    if column in ("reward", "done", "success"):
        return f"next.{column}"
    if column == "action":
        return ACTION
    return f"{IMAGES}{column}" if values.ndim == 4 else f"observation.{column}"


def _flat(values: np.ndarray) -> np.ndarray:
    """Return numbers ``[T, ...]`` as ``[T, D]``; those with one number a step stay ``[T]``."""
    return values if values.ndim == 1 else values.reshape(len(values), -1)

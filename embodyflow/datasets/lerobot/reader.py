"""Reading a LeRobot data set, version v2.1 or v3.0."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodyflow.datasets.dataset import Columns, DatasetEpisode, FeatureStatistics
from embodyflow.datasets.lerobot.info import V21, read_info
from embodyflow.datasets.lerobot.layout import Layout, LayoutV21, LayoutV30, VideoPart
from embodyflow.datasets.lerobot.videos import check_video, decode_frames, decode_pictures
from embodyflow.datasets.packages import require
from embodyflow.errors import ConfigError

TASK = "task_index"
"""Column with the number of a step's task."""

TOLERANCE = 1e-4
"""Seconds that a timestamp may differ from its frame's time, as in LeRobot."""


class LeRobotReader:
    """A LeRobot data set; see :class:`~embodyflow.datasets.dataset.Dataset`.

    Args:
        path: Folder of the data set.

    Raises:
        ConfigError: Its descriptions are missing or damaged, or have a version that is not read.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._info = path, read_info(path)
        self.fps: float | None = self._info.fps
        self.features = self._info.features
        self._layout: Layout = (LayoutV21 if self._info.version == V21 else LayoutV30)(path, self._info)
        self.episodes = self._layout.episodes

    def statistics(self, feature: str) -> FeatureStatistics | None:
        """Return the statistics in ``meta/stats.json``, or those in ``meta/episodes_stats.jsonl``, merged."""
        return self._layout.statistics(feature)

    def check(self, episodes: Collection[DatasetEpisode], features: Collection[str]) -> None:
        """Check the files of episodes: columns, timestamps, tasks, videos, sizes of first images.

        Raises:
            ConfigError: A file is missing or damaged, or does not fit the description.
        """
        videos = [name for name in features if name in self._info.videos]
        stored = [name for name in features if name not in self._info.videos]
        files = sorted({self._layout.data_file(episode) for episode in episodes})
        columns = {file: _checked_columns(file, stored) for file in files}
        for episode in episodes:
            self._check_times(episode, self._table(episode, ["timestamp"]))
            if TASK in columns[self._layout.data_file(episode)]:
                self._check_task(episode, self._table(episode, [TASK]))
            for name in (each for each in stored if self.features[each].is_image):
                self._pictures(episode, name, self._table(episode, [name]).column(name).slice(0, 1))
        for name in videos:
            parts: dict[Path, list[VideoPart]] = {}
            for episode in episodes:
                part = self._layout.video(episode, name)
                parts.setdefault(part.path, []).append(part)
            for path, found in parts.items():
                check_video(path, found, self._info.fps, self.features[name].shape)

    def read(self, episode: DatasetEpisode, features: Collection[str]) -> Columns:
        """Return features of an episode, ``[T, ...]``; images are uint8 ``[T, H, W, 3]``."""
        stored = [name for name in features if name not in self._info.videos]
        table, columns = self._table(episode, stored), {}
        for name in features:
            if name in self._info.videos:
                part = self._layout.video(episode, name)
                columns[name] = decode_frames(part, self._info.fps)
            elif self.features[name].is_image:
                columns[name] = self._pictures(episode, name, table.column(name))
            else:
                columns[name] = self._numbers(episode, name, table.column(name))
        return columns

    def _pictures(self, episode: DatasetEpisode, name: str, column: Any) -> NDArray[Any]:
        """Return the images of a column, ``[T, H, W, 3]``, whose size the description of the data set says."""
        images = decode_pictures(self.path, column.to_pylist())
        if images.shape[1:] != self.features[name].shape:
            raise ConfigError(
                f"{self.path}: {name} of episode {episode.index} has images {list(images.shape[1:])}, its description "
                f"says {list(self.features[name].shape)}"
            )
        return images

    def _numbers(self, episode: DatasetEpisode, name: str, column: Any) -> NDArray[Any]:
        """Return the numbers of a column, ``[T, ...]``, whose shape the description of the data set says."""
        numbers, shape = _numbers(column), (episode.num_steps, *self.features[name].shape)
        if numbers.size != np.prod(shape) or numbers.dtype.kind not in "biuf":
            raise ConfigError(
                f"{self.path}: {name} of episode {episode.index} has {numbers.size} values of {numbers.dtype.name} in "
                f"{episode.num_steps} steps; its description says numbers {list(shape[1:])} a step"
            )
        return numbers.reshape(shape)

    def _table(self, episode: DatasetEpisode, names: Sequence[str]) -> Any:
        """Return columns of an episode's steps, in their order."""
        parquet, file = require("pyarrow.parquet"), self._layout.data_file(episode)
        chosen = [("episode_index", "=", episode.index)]
        try:
            table = parquet.read_table(file, columns=[*names, "frame_index"], filters=chosen, partitioning=None)
        except (OSError, ValueError, TypeError, NotImplementedError) as error:  # Arrow's errors of a wrong type differ
            raise ConfigError(f"{file}: cannot be read: {str(error).partition(chr(10))[0]}") from error
        frames = table.column("frame_index").to_numpy()
        if len(frames) != episode.num_steps:
            raise ConfigError(
                f"{self.path}: episode {episode.index} has {len(frames)} steps in {file.name}, its description says "
                f"{episode.num_steps}"
            )
        order = np.argsort(frames, kind="stable")
        if not np.array_equal(frames[order], np.arange(len(frames))):
            raise ConfigError(f"{self.path}: the frames of episode {episode.index} are not numbered from 0 on")
        return table.take(order)

    def _check_times(self, episode: DatasetEpisode, table: Any) -> None:
        stored = _numbers(table.column("timestamp"))
        if len(stored) != episode.num_steps or stored.dtype.kind not in "iuf":
            raise ConfigError(f"{self.path}: the timestamps of episode {episode.index} are not one number a step")
        times = stored.astype(np.float64)
        # Timestamps are float32, whose spacing exceeds the tolerance after 17 minutes. NaN is late.
        late = ~(np.abs(times - np.arange(len(times)) / self._info.fps) <= TOLERANCE + np.spacing(np.float32(times)))
        if late.any():
            frame = int(np.argmax(late))
            raise ConfigError(
                f"{self.path}: says fps={self._info.fps:g}, but frame {frame} of episode {episode.index} is at "
                f"{times[frame]:.4f} s instead of {frame / self._info.fps:.4f} s"
            )

    def _check_task(self, episode: DatasetEpisode, table: Any) -> None:
        """Check that the steps of an episode have the task of its description, if the data set lists its tasks."""
        texts, numbers = self._layout.tasks, np.unique(_numbers(table.column(TASK)))
        if not texts or episode.task is None:
            return
        for number in numbers.tolist():
            if texts.get(number) != episode.task:
                raise ConfigError(
                    f"{self.path}: episode {episode.index} has the task {episode.task!r} by its description, but "
                    f"{texts.get(number)!r} by {TASK}={number} of its steps"
                )


def _checked_columns(file: Path, names: Sequence[str]) -> Sequence[str]:
    """Return the names of a file's columns.

    Raises:
        ConfigError: The file cannot be read, or lacks one of ``names`` or of the columns that number steps.
    """
    parquet = require("pyarrow.parquet")
    try:
        found: list[str] = parquet.read_schema(file).names
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read: {str(error).partition(chr(10))[0]}") from error
    for name in [*names, "timestamp", "frame_index", "episode_index"]:
        if name not in found:
            raise ConfigError(f"{file}: has no column {name}, only {', '.join(found)}")
    return found


def _numbers(column: Any) -> NDArray[Any]:
    """Return all numbers of a column with lists of any depth, in their order."""
    values = column.combine_chunks()
    values = getattr(values, "storage", values)  # Hugging Face's arrays of several axes are an extension of lists
    while hasattr(values.type, "value_type"):
        values = values.flatten()
    return np.asarray(values.to_numpy(zero_copy_only=False))

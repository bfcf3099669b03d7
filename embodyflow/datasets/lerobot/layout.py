"""Where a LeRobot data set keeps what: one class for each version of the format."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from embodyflow.datasets.dataset import DatasetEpisode, FeatureStatistics
from embodyflow.datasets.lerobot.info import INFO, Info
from embodyflow.datasets.lerobot.statistics import merged, read_values
from embodyflow.datasets.packages import require
from embodyflow.errors import ConfigError

EPISODES_V21, STATISTICS_V21 = "meta/episodes.jsonl", "meta/episodes_stats.jsonl"
EPISODES_V30, STATISTICS_V30 = "meta/episodes", "meta/stats.json"
TASKS_V21, TASKS_V30 = "meta/tasks.jsonl", "meta/tasks.parquet"


@dataclass(frozen=True)
class VideoPart:
    """A part of an mp4 file that shows one episode.

    Attributes:
        path: The file.
        start: Time of the episode's first frame in the file, in seconds.
        num_frames: Frames of the episode.
        is_whole: Whether the file shows nothing else.
    """

    path: Path
    start: float
    num_frames: int
    is_whole: bool


class Layout(Protocol):
    """The places of a data set's episodes.

    Attributes:
        episodes: Episodes in the order of their indices.
    """

    episodes: Sequence[DatasetEpisode]

    @property
    def tasks(self) -> Mapping[int, str]:
        """Texts of the tasks by the number in a step's ``task_index``; empty if the data set does not list them."""

    def data_file(self, episode: DatasetEpisode) -> Path:
        """Return the parquet file with the steps of an episode."""

    def video(self, episode: DatasetEpisode, feature: str) -> VideoPart:
        """Return the place of an episode's images, of a feature that is kept in mp4 files."""

    def statistics(self, feature: str) -> FeatureStatistics | None:
        """Return the statistics of a feature over the data set; ``None`` without them."""


class LayoutV21:
    """Version 2.1: a parquet file and an mp4 file for each episode, descriptions in JSON lines."""

    def __init__(self, folder: Path, info: Info) -> None:
        self._folder, self._info = folder, info
        found = [_episode(folder, EPISODES_V21, line) for line in _json_lines(folder, EPISODES_V21)]
        self.episodes: Sequence[DatasetEpisode] = _in_order(folder, EPISODES_V21, found)

    @cached_property
    def tasks(self) -> Mapping[int, str]:
        """Texts of ``meta/tasks.jsonl``."""
        if not (self._folder / TASKS_V21).is_file():
            return {}
        lines = _json_lines(self._folder, TASKS_V21)
        return _task_texts(self._folder, TASKS_V21, [(line.get("task_index"), line.get("task")) for line in lines])

    def data_file(self, episode: DatasetEpisode) -> Path:
        """Return the episode's own parquet file."""
        return _file(self._folder, "data_path", self._info.data_path, self._place(episode))

    def video(self, episode: DatasetEpisode, feature: str) -> VideoPart:
        """Return the episode's own mp4 file."""
        place = {**self._place(episode), "video_key": feature}
        path = _file(self._folder, "video_path", self._info.video_path, place)
        return VideoPart(path, 0.0, episode.num_steps, is_whole=True)

    def statistics(self, feature: str) -> FeatureStatistics | None:
        """Return the statistics of the episodes, merged."""
        parts = [_statistics(self._folder, STATISTICS_V21, feature, each) for each in self._stored_statistics]
        found = [part for part in parts if part is not None]
        if not found or len(found) < len(parts):
            return None
        if len(parts) != len(self.episodes):
            raise ConfigError(
                f"{self._folder}: {STATISTICS_V21} has statistics of {len(parts)} episodes, {EPISODES_V21} has "
                f"{len(self.episodes)}"
            )
        if any(part.mean.shape != found[0].mean.shape for part in found):
            raise ConfigError(f"{self._folder}: {STATISTICS_V21} has statistics of {feature} of different sizes")
        return merged(found)

    @cached_property
    def _stored_statistics(self) -> list[Any]:
        if not (self._folder / STATISTICS_V21).is_file():
            return []
        return [line.get("stats") for line in _json_lines(self._folder, STATISTICS_V21)]

    def _place(self, episode: DatasetEpisode) -> dict[str, int]:
        return {"episode_index": episode.index, "episode_chunk": episode.index // self._info.chunks_size}


class LayoutV30:
    """Version 3.0: several episodes in a parquet or mp4 file, descriptions in parquet files."""

    def __init__(self, folder: Path, info: Info) -> None:
        self._folder, self._info = folder, info
        files = sorted((folder / EPISODES_V30).glob("*/*.parquet"))
        if not files:
            raise ConfigError(f"{folder}: has no parquet file in {EPISODES_V30}")
        rows = [row for file in files for row in _rows(file)]
        found = [_episode(folder, EPISODES_V30, row) for row in rows]
        self.episodes: Sequence[DatasetEpisode] = _in_order(folder, EPISODES_V30, found)
        self._rows = {episode.index: row for episode, row in zip(found, rows, strict=True)}

    @cached_property
    def tasks(self) -> Mapping[int, str]:
        """Texts of ``meta/tasks.parquet``, which are its only other column."""
        path = self._folder / TASKS_V30
        if not path.is_file():
            return {}
        pairs = [
            (row.pop("task_index", None), next((text for text in row.values() if isinstance(text, str)), None))
            for row in _rows(path)
        ]
        return _task_texts(self._folder, TASKS_V30, pairs)

    def data_file(self, episode: DatasetEpisode) -> Path:
        """Return the parquet file that the episode shares with others."""
        return _file(self._folder, "data_path", self._info.data_path, self._place(episode, "data"))

    def video(self, episode: DatasetEpisode, feature: str) -> VideoPart:
        """Return the episode's part of the mp4 file that it shares with others."""
        place, start = self._place(episode, f"videos/{feature}"), f"videos/{feature}/from_timestamp"
        path = _file(self._folder, "video_path", self._info.video_path, {**place, "video_key": feature})
        part = VideoPart(path, self._number(episode, start), episode.num_steps, is_whole=False)
        self._check_length(episode, part, f"videos/{feature}/to_timestamp")
        return part

    def statistics(self, feature: str) -> FeatureStatistics | None:
        """Return the statistics of the data set."""
        return _statistics(self._folder, STATISTICS_V30, feature, self._stored_statistics)

    @cached_property
    def _stored_statistics(self) -> Any:
        path = self._folder / STATISTICS_V30
        if not path.is_file():
            return {}
        try:
            return json.loads(path.read_text())
        except ValueError as error:
            raise ConfigError(f"{self._folder}: {STATISTICS_V30} is damaged: {error}") from error

    def _place(self, episode: DatasetEpisode, kind: str) -> dict[str, Any]:
        return {name: int(self._number(episode, f"{kind}/{name}")) for name in ("chunk_index", "file_index")}

    def _check_length(self, episode: DatasetEpisode, part: VideoPart, column: str) -> None:
        if column not in self._rows[episode.index]:
            return
        shown, steps = (self._number(episode, column) - part.start) * self._info.fps, episode.num_steps
        if abs(shown - steps) > 0.5:
            raise ConfigError(
                f"{self._folder}: episode {episode.index} has {steps} steps, but by {column} {shown:g} frames"
            )

    def _number(self, episode: DatasetEpisode, column: str) -> float:
        value = self._rows[episode.index].get(column)
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ConfigError(f"{self._folder}: {EPISODES_V30} has no number in column {column}")
        return value


def _episode(folder: Path, name: str, row: Any) -> DatasetEpisode:
    """Return an episode from the row of a description.

    Raises:
        ConfigError: The row has no index or no length, or one that is no number of things.
    """
    try:
        index, length, tasks = row["episode_index"], row["length"], row.get("tasks")
    except KeyError as error:
        raise ConfigError(f"{folder}: {name} has no {error.args[0]}") from error
    except (TypeError, AttributeError) as error:
        raise ConfigError(f"{folder}: {name} is damaged: {error}") from error
    for key, number in (("episode_index", index), ("length", length)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ConfigError(f"{folder}: {name} is damaged: {key}={number!r} is no whole number of at least 0")
    is_one = isinstance(tasks, list) and len(tasks) == 1 and isinstance(tasks[0], str)
    return DatasetEpisode(index, length, tasks[0] if is_one else None)


def _task_texts(folder: Path, name: str, pairs: Sequence[tuple[Any, Any]]) -> dict[int, str]:
    """Return the texts of tasks by their numbers.

    Raises:
        ConfigError: A number or a text is missing, or a number has two texts.
    """
    texts: dict[int, str] = {}
    for number, text in pairs:
        if not isinstance(number, int) or not isinstance(text, str):
            raise ConfigError(f"{folder}: {name} is damaged: task_index={number!r} has the text {text!r}")
        if texts.setdefault(number, text) != text:
            raise ConfigError(f"{folder}: {name} has task_index {number} twice")
    return texts


def _in_order(folder: Path, name: str, episodes: Sequence[DatasetEpisode]) -> list[DatasetEpisode]:
    """Return episodes in the order of their indices.

    Raises:
        ConfigError: Two have the same index.
    """
    ordered = sorted(episodes, key=lambda episode: episode.index)
    for episode, following in pairwise(ordered):
        if episode.index == following.index:
            raise ConfigError(f"{folder}: {name} has episode {episode.index} twice")
    return ordered


def _file(folder: Path, key: str, pattern: str | None, place: Mapping[str, Any]) -> Path:
    """Return the path that a pattern of ``meta/info.json`` gives.

    Raises:
        ConfigError: The pattern is missing, or needs something else.
    """
    if pattern is None:
        raise ConfigError(f"{folder}: {INFO} has no {key}")
    try:
        return folder / pattern.format(**place)
    except (LookupError, ValueError) as error:
        raise ConfigError(f"{folder}: {INFO} has {key}={pattern}; allowed are {', '.join(place)}: {error}") from error


def _statistics(folder: Path, name: str, feature: str, stored: Any) -> FeatureStatistics | None:
    """Return the statistics of a feature from those of all; ``None`` if it has none.

    Raises:
        ConfigError: They are incomplete, or are no finite numbers.
    """
    try:
        return read_values(stored[feature]) if feature in stored else None
    except KeyError as error:
        raise ConfigError(f"{folder}: {name} has no {error.args[0]} of {feature}") from error
    except (TypeError, ValueError, IndexError) as error:
        raise ConfigError(f"{folder}: {name}, {feature}: {error}") from error


def _json_lines(folder: Path, name: str) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in (folder / name).read_text().splitlines() if line.strip()]
    except FileNotFoundError as error:
        raise ConfigError(f"{folder}: has no {name}") from error
    except ValueError as error:
        raise ConfigError(f"{folder}: {name} is damaged: {error}") from error


def _rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a description, without the statistics of episodes, which take most of its space."""
    parquet = require("pyarrow.parquet")
    try:
        names = [name for name in parquet.read_schema(file).names if not name.startswith("stats/")]
        rows: list[dict[str, Any]] = parquet.read_table(file, columns=names).to_pylist()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: is damaged: {str(error).splitlines()[0]}") from error
    return rows

"""Where a LeRobot data set keeps what: one class for each version of the format."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from embodyflow.datasets.dataset import DatasetEpisode, FeatureStatistics
from embodyflow.datasets.lerobot.info import Info
from embodyflow.datasets.lerobot.statistics import merged, of_values
from embodyflow.datasets.packages import require
from embodyflow.errors import ConfigError

EPISODES_V21, STATISTICS_V21 = "meta/episodes.jsonl", "meta/episodes_stats.jsonl"
EPISODES_V30, STATISTICS_V30 = "meta/episodes", "meta/stats.json"


@dataclass(frozen=True)
class VideoPart:
    """A part of an mp4 file that shows one episode.

    Attributes:
        path: The file.
        start: Time of the episode's first frame in the file, in seconds.
    """

    path: Path
    start: float


class Layout(Protocol):
    """The places of a data set's episodes.

    Attributes:
        episodes: Episodes in the order of their indices.
    """

    episodes: Sequence[DatasetEpisode]

    def data_file(self, episode: DatasetEpisode) -> Path:
        """Return the parquet file with the steps of an episode."""

    def video(self, episode: DatasetEpisode, feature: str) -> VideoPart:
        """Return the place of an episode's images, of a feature that is kept in mp4 files."""

    def statistics(self) -> Mapping[str, FeatureStatistics]:
        """Return the statistics over the data set, by feature; empty without them."""


class LayoutV21:
    """Version 2.1: a parquet file and an mp4 file for each episode, descriptions in JSON lines."""

    def __init__(self, folder: Path, info: Info) -> None:
        self._folder, self._info = folder, info
        lines = _json_lines(folder, EPISODES_V21)
        self.episodes: Sequence[DatasetEpisode] = sorted(
            (_episode(line) for line in lines), key=lambda episode: episode.index
        )

    def data_file(self, episode: DatasetEpisode) -> Path:
        """Return the episode's own parquet file."""
        return self._folder / self._info.data_path.format(**self._place(episode))

    def video(self, episode: DatasetEpisode, feature: str) -> VideoPart:
        """Return the episode's own mp4 file."""
        assert self._info.video_path is not None
        return VideoPart(self._folder / self._info.video_path.format(**self._place(episode), video_key=feature), 0.0)

    def statistics(self) -> Mapping[str, FeatureStatistics]:
        """Return the statistics of the episodes, merged."""
        if not (self._folder / STATISTICS_V21).is_file():
            return {}
        lines = [line["stats"] for line in _json_lines(self._folder, STATISTICS_V21)]
        names = set.intersection(*(set(line) for line in lines)) if lines else set()
        return {name: merged([of_values(line[name]) for line in lines]) for name in names}

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
        self._rows = {int(row["episode_index"]): row for row in rows}
        self.episodes: Sequence[DatasetEpisode] = [_episode(self._rows[index]) for index in sorted(self._rows)]

    def data_file(self, episode: DatasetEpisode) -> Path:
        """Return the parquet file that the episode shares with others."""
        return self._folder / self._info.data_path.format(**self._place(episode, "data"))

    def video(self, episode: DatasetEpisode, feature: str) -> VideoPart:
        """Return the episode's part of the mp4 file that it shares with others."""
        assert self._info.video_path is not None
        place, start = self._place(episode, f"videos/{feature}"), f"videos/{feature}/from_timestamp"
        path = self._folder / self._info.video_path.format(**place, video_key=feature)
        return VideoPart(path, float(self._rows[episode.index][start]))

    def statistics(self) -> Mapping[str, FeatureStatistics]:
        """Return the statistics of the data set."""
        path = self._folder / STATISTICS_V30
        if not path.is_file():
            return {}
        try:
            values = json.loads(path.read_text())
        except ValueError as error:
            raise ConfigError(f"{self._folder}: {STATISTICS_V30} is damaged: {error}") from error
        return {name: of_values(each) for name, each in values.items()}

    def _place(self, episode: DatasetEpisode, kind: str) -> dict[str, int]:
        row = self._rows[episode.index]
        try:
            return {name: int(row[f"{kind}/{name}"]) for name in ("chunk_index", "file_index")}
        except KeyError as error:
            raise ConfigError(f"{self._folder}: {EPISODES_V30} has no column {error.args[0]}") from error


def _episode(row: Mapping[str, Any]) -> DatasetEpisode:
    tasks = list(row["tasks"])
    return DatasetEpisode(int(row["episode_index"]), int(row["length"]), tasks[0] if len(tasks) == 1 else None)


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

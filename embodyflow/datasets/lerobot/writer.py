"""Writing a LeRobot data set, version v3.0: several episodes in a file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from embodyflow.datasets.dataset import Columns
from embodyflow.datasets.lerobot.info import INFO, V30
from embodyflow.datasets.lerobot.layout import EPISODES_V30, STATISTICS_V30
from embodyflow.datasets.lerobot.statistics import Described, describe, describe_images, merge_described
from embodyflow.datasets.lerobot.step_files import StepFiles, StoredColumn
from embodyflow.datasets.lerobot.video_files import VideoFiles
from embodyflow.datasets.packages import require
from embodyflow.errors import ConfigError

FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
DATA_PATH, VIDEO_PATH = f"data/{FILE}.parquet", f"videos/{{video_key}}/{FILE}.mp4"
TASKS = "meta/tasks.parquet"
FILES_PER_FOLDER, DATA_MB, VIDEO_MB = 1000, 100, 200
"""LeRobot's defaults: files in a folder, and the size in MB at which a file is followed by another."""

NUMBERING = {"timestamp": "float32", **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64")}
"""Features of every data set, with their dtypes."""


@dataclass(frozen=True)
class DatasetDescription:
    """What a data set to write is.

    Attributes:
        fps: Frames per second.
        robot: Name of the robot or the environment.
        images: Kind of files for images: ``video`` writes mp4 files, which lose details, and ``png`` loses nothing.
    """

    fps: float
    robot: str
    images: Literal["video", "png"] = "video"


class LeRobotWriter:
    """Writes a data set episode by episode. It can be read after :meth:`finish`.

    Args:
        folder: Folder to write, which does not exist yet.
        description: Frame rate, robot and kind of images.
    """

    def __init__(self, folder: Path, description: DatasetDescription) -> None:
        self._folder, self._about = folder, description
        self._features: dict[str, dict[str, Any]] = {}
        self._steps = StepFiles(folder, DATA_PATH, DATA_MB, FILES_PER_FOLDER)
        self._videos: dict[str, VideoFiles] = {}
        self._tasks: dict[str, int] = {}
        self._episodes: list[dict[str, Any]] = []
        self._statistics: list[dict[str, Described]] = []
        self._num_frames = 0

    def add(self, task: str, columns: Columns) -> None:
        """Write an episode of T steps.

        Args:
            task: Text of its task.
            columns: Features by name: images uint8 ``[T, H, W, 3]``, other numbers ``[T]`` or ``[T, D]``. All episodes
                have the same ones.

        Raises:
            ConfigError: A video needs images of even height and width.
        """
        if not self._episodes:
            self._features = {name: self._feature(name, values) for name, values in columns.items()}
        length, index = len(next(iter(columns.values()))), len(self._episodes)
        row: dict[str, Any] = {"episode_index": index, "tasks": [task], "length": length}
        row |= {"dataset_from_index": self._num_frames, "dataset_to_index": self._num_frames + length}
        row |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
        columns = {**columns, **self._numbering(index, length, self._tasks.setdefault(task, len(self._tasks)))}
        for name, files in self._videos.items():
            place = files.append(columns[name])
            row |= {f"videos/{name}/{key}": value for key, value in place.items()}
        stored = {name: self._stored(name, values) for name, values in columns.items() if name not in self._videos}
        row |= {f"data/{key}": value for key, value in self._steps.append(stored).items()}
        self._statistics.append({name: _described(values) for name, values in columns.items()})
        self._episodes.append(row)
        self._num_frames += length

    def finish(self) -> None:
        """Close the files and write the descriptions."""
        self._steps.close()
        for files in self._videos.values():
            files.close()
        self._write_episodes()
        pandas = require("pandas")
        index = pandas.Index(list(self._tasks), name="task")
        pandas.DataFrame({"task_index": list(self._tasks.values())}, index=index).to_parquet(self._folder / TASKS)
        names = self._statistics[0]
        whole = {name: merge_described([each[name] for each in self._statistics]) for name in names}
        self._write_json(STATISTICS_V30, {name: _plain(each) for name, each in whole.items()})
        self._write_json(INFO, self._info())

    def _feature(self, name: str, values: np.ndarray) -> dict[str, Any]:
        """Return the description of a feature; open the files of one that is kept as video."""
        if values.ndim != 4:
            return {"dtype": values.dtype.name, "shape": list(values.shape[1:]) or [1], "names": None}
        kind = "image" if self._about.images == "png" else "video"
        about = {"dtype": kind, "shape": list(values.shape[1:]), "names": ["height", "width", "channels"]}
        if kind == "image":
            return about
        if values.shape[1] % 2 or values.shape[2] % 2:
            raise ConfigError(
                f"--images=video: {name} is {list(values.shape[1:])}, and needs even sizes; allowed is png"
            )
        path = self._folder / VIDEO_PATH.replace("{video_key}", name)
        self._videos[name] = VideoFiles(path, self._about.fps, VIDEO_MB, FILES_PER_FOLDER)
        return about | {"info": self._videos[name].info(values.shape[1], values.shape[2])}

    def _numbering(self, episode: int, length: int, task: int) -> Columns:
        frames = np.arange(length)
        numbers = {
            "timestamp": frames / self._about.fps,
            "frame_index": frames,
            "episode_index": np.full(length, episode),
            "index": self._num_frames + frames,
            "task_index": np.full(length, task),
        }
        return {name: values.astype(NUMBERING[name]) for name, values in numbers.items()}

    def _stored(self, name: str, values: np.ndarray) -> StoredColumn:
        if name in NUMBERING:
            return StoredColumn(values)
        about = self._features[name]
        return StoredColumn(values, is_image=about["dtype"] == "image")

    def _write_episodes(self) -> None:
        arrow, parquet = require("pyarrow"), require("pyarrow.parquet")
        rows = [
            row | {f"stats/{name}/{key}": value for name, each in stats.items() for key, value in _plain(each).items()}
            for row, stats in zip(self._episodes, self._statistics, strict=True)
        ]
        path = self._folder / EPISODES_V30 / f"{FILE.format(chunk_index=0, file_index=0)}.parquet"
        path.parent.mkdir(parents=True)
        parquet.write_table(arrow.Table.from_pylist(rows), path)

    def _info(self) -> Mapping[str, Any]:
        numbering = {name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in NUMBERING.items()}
        fps = self._about.fps
        return {
            "codebase_version": V30,
            "robot_type": self._about.robot,
            "total_episodes": len(self._episodes),
            "total_frames": self._num_frames,
            "total_tasks": len(self._tasks),
            "chunks_size": FILES_PER_FOLDER,
            "data_files_size_in_mb": DATA_MB,
            "video_files_size_in_mb": VIDEO_MB,
            "fps": int(fps) if float(fps).is_integer() else fps,
            "splits": {"train": f"0:{len(self._episodes)}"},
            "data_path": DATA_PATH,
            "video_path": VIDEO_PATH if self._videos else None,
            "features": self._features | numbering,
        }

    def _write_json(self, name: str, values: Mapping[str, Any]) -> None:
        (self._folder / name).write_text(json.dumps(values, indent=4) + "\n")


def _described(values: np.ndarray) -> Described:
    return describe_images(values) if values.ndim == 4 else describe(values.reshape(len(values), -1))


def _plain(statistics: Described) -> dict[str, Any]:
    return {name: values.tolist() for name, values in statistics.items()}

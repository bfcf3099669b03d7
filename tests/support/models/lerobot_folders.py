"""Small LeRobot data sets in folders, of both versions, with known numbers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embodyflow.datasets.dataset import Columns
from embodyflow.datasets.lerobot.statistics import describe
from embodyflow.datasets.lerobot.writer import DatasetDescription, LeRobotWriter

REACH, FPS = "reach-v3", 80.0
"""Instruction and frame rate of Meta-World's reach-v3 in embodyflow."""


def steps(length: int, seed: int = 0, *, state: int = 30, action: int = 4, image: int | None = None) -> Columns:
    """Return features of an episode with random numbers, the actions in [-1, 1]; each image is brighter by 20."""
    rng = np.random.default_rng(seed)
    columns: Columns = {
        "observation.state": rng.standard_normal((length, state)).astype(np.float32),
        "action": rng.uniform(-1, 1, (length, action)).astype(np.float32),
    }
    if image is not None:
        ramp = np.linspace(0, 60, image * image * 3).reshape(image, image, 3)  # greys, which a video hardly changes
        shades = 20 * np.arange(length).reshape(-1, 1, 1, 1) + 5 * seed
        columns["observation.images.image"] = (ramp + shades).astype(np.uint8)
    return columns


def write_v30(folder: Path, episodes: Sequence[tuple[str, Columns]], *, fps: float = FPS, images: str = "png") -> Path:
    """Write episodes, each with the text of its task, as version v3.0; return the folder."""
    writer = LeRobotWriter(folder, DatasetDescription(fps, "test", images))  # type: ignore[arg-type]
    for task, columns in episodes:
        writer.add(task, columns)
    writer.finish()
    return folder


def write_v21(folder: Path, episodes: Sequence[tuple[str, Columns]], *, fps: float = FPS) -> Path:
    """Write episodes without images as version v2.1, an episode a file; return the folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (folder / "meta").mkdir(parents=True)
    (folder / "data" / "chunk-000").mkdir(parents=True)
    lines: dict[str, list[Mapping[str, Any]]] = {"episodes": [], "episodes_stats": []}
    numbers: dict[str, int] = {}  # of tasks
    for index, (task, columns) in enumerate(episodes):
        length = len(columns["action"])
        frames = np.arange(length)
        table = {name: list(values) for name, values in columns.items()}
        table |= {"timestamp": (frames / fps).astype(np.float32), "frame_index": frames}
        numbers.setdefault(task, len(numbers))
        table |= {"episode_index": np.full(length, index), "task_index": np.full(length, numbers[task])}
        pq.write_table(pa.table(table), folder / f"data/chunk-000/episode_{index:06d}.parquet")
        stats = {name: {k: v.tolist() for k, v in describe(values).items()} for name, values in columns.items()}
        lines["episodes"].append({"episode_index": index, "tasks": [task], "length": length})
        lines["episodes_stats"].append({"episode_index": index, "stats": stats})
    lines["tasks"] = [{"task_index": number, "task": task} for task, number in numbers.items()]
    for name, rows in lines.items():
        (folder / f"meta/{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    features = {name: {"dtype": "float32", "shape": [v.shape[1]]} for name, v in episodes[0][1].items()}
    data = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    info = {"codebase_version": "v2.1", "fps": fps, "chunks_size": 1000, "data_path": data, "video_path": None}
    (folder / "meta/info.json").write_text(json.dumps(info | {"features": features}))
    return folder


def edit_info(folder: Path, **values: Any) -> None:
    """Change entries of ``meta/info.json``."""
    path = folder / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))

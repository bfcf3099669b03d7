"""Reading LeRobot data sets of both versions."""

import importlib.util
import io
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot_folders import edit_info, steps, write_v21, write_v30
from PIL import Image

from embodyflow.datasets.lerobot.layout import VideoPart
from embodyflow.datasets.lerobot.statistics import describe, merge_described, merged, of_values
from embodyflow.datasets.lerobot.videos import check_video, decode_pictures
from embodyflow.datasets.opening import open_dataset
from embodyflow.errors import ConfigError

pytest.importorskip("pyarrow", reason="pyarrow, of the extra datasets, is not installed")
needs_av = pytest.mark.skipif(
    importlib.util.find_spec("av") is None, reason="av, of the extra datasets, is not installed"
)

LEROBOT = "EMBODYFLOW_LEROBOT_PYTHON"
"""Environment variable with the interpreter of an environment with LeRobot, whose pins exclude ours."""

WRITE_WITH_LEROBOT = """
import sys
import numpy
from lerobot.datasets.lerobot_dataset import LeRobotDataset

features = {"action": {"dtype": "float32", "shape": (4,), "names": None}}
names = ["height", "width", "channels"]
features["observation.images.image"] = {"dtype": "video", "shape": (64, 64, 3), "names": names}
dataset = LeRobotDataset.create("local/written", 10, root=sys.argv[1], features=features, use_videos=True)
rng = numpy.random.default_rng(0)
for task, length in (("reach", 6), ("push", 4)):
    for step in range(length):
        image = numpy.full((64, 64, 3), 20 * step, numpy.uint8)
        action = rng.standard_normal(4).astype(numpy.float32)
        dataset.add_frame({"action": action, "observation.images.image": image, "task": task})
    dataset.save_episode()
dataset.finalize()
"""

EPISODES = [("reach", steps(7, 1)), ("push", steps(5, 2)), ("reach", steps(9, 3))]
WRITERS = pytest.mark.parametrize("write", [write_v21, write_v30], ids=["v2.1", "v3.0"])


@WRITERS
def test_numbers_are_read_bit_identical(write: Callable[..., Path], tmp_path: Path) -> None:
    dataset = open_dataset(write(tmp_path / "set", EPISODES))
    assert dataset.fps == 80
    assert [(each.index, each.num_steps, each.task) for each in dataset.episodes] == [
        (0, 7, "reach"),
        (1, 5, "push"),
        (2, 9, "reach"),
    ]
    names = list(EPISODES[0][1])
    dataset.check(dataset.episodes, names)
    for episode, (_, columns) in zip(dataset.episodes, EPISODES, strict=True):
        found = dataset.read(episode, names)
        assert {name: values.dtype for name, values in found.items()} == dict.fromkeys(names, np.float32)
        assert all(found[name].tobytes() == columns[name].tobytes() for name in names)


@WRITERS
def test_statistics_are_those_over_all_steps(write: Callable[..., Path], tmp_path: Path) -> None:
    dataset = open_dataset(write(tmp_path / "set", EPISODES))
    actions = np.concatenate([columns["action"] for _, columns in EPISODES]).astype(np.float64)
    found = dataset.statistics("action")
    assert found is not None and found.count == 21
    np.testing.assert_allclose(found.mean, actions.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.std, actions.std(0), rtol=1e-12)
    assert (found.low == actions.min(0)).all() and (found.high == actions.max(0)).all()
    assert dataset.statistics("observation.other") is None


def test_merged_statistics_by_hand() -> None:
    parts = [describe(np.array([[0.0], [2.0]])), describe(np.array([[4.0], [6.0], [8.0], [10.0]]))]
    whole = merge_described(parts)
    assert whole["mean"][0] == pytest.approx(5) and whole["count"].tolist() == [6]
    assert whole["std"][0] == pytest.approx(np.sqrt(70 / 6))  # squared distances from 5: 25, 9, 1, 1, 9, 25
    assert whole["q50"][0] == pytest.approx((2 * 1 + 4 * 7) / 6)
    found = merged([of_values(part) for part in parts])
    assert found.q01 is not None and found.q99 is not None
    assert (found.q01[0], found.q99[0]) == pytest.approx((whole["q01"][0], whole["q99"][0]))
    del parts[0]["q01"]
    assert merged([of_values(part) for part in parts]).q01 is None


def test_pictures_are_read_bit_identical(tmp_path: Path) -> None:
    columns = steps(4, image=16)
    dataset = open_dataset(write_v30(tmp_path / "set", [("reach", columns)]))
    assert dataset.features["observation.images.image"].shape == (16, 16, 3)
    found = dataset.read(dataset.episodes[0], ["observation.images.image"])
    np.testing.assert_array_equal(found["observation.images.image"], columns["observation.images.image"])


@needs_av
def test_each_episode_gets_its_own_frames_of_a_video_that_episodes_share(tmp_path: Path) -> None:
    written = [("reach", steps(5, 1, image=32)), ("push", steps(8, 2, image=32)), ("reach", steps(3, 3, image=32))]
    dataset = open_dataset(write_v30(tmp_path / "set", written, images="video"))
    assert len(list((tmp_path / "set").rglob("*.mp4"))) == 1
    name = "observation.images.image"
    dataset.check(dataset.episodes, [name])
    for episode, (_, columns) in list(zip(dataset.episodes, written, strict=True))[::-1]:
        found = dataset.read(episode, [name])[name]
        assert found.shape == columns[name].shape
        assert np.abs(found.astype(int) - columns[name]).max() < 10  # a frame too early or too late is 20 off


@needs_av
@pytest.mark.parametrize("fps", [0.5, 29.97, 80.0, 1000.0])
def test_episodes_of_one_frame_and_any_task_come_back(fps: float, tmp_path: Path) -> None:
    tasks = ("déplacer 🤖 «x»", "", "two\nlines", "déplacer 🤖 «x»")
    episodes = [(task, steps(length, length, image=16)) for task, length in zip(tasks, (1, 2, 5, 1), strict=True)]
    dataset = open_dataset(write_v30(tmp_path / "set", episodes, fps=fps, images="video"))
    dataset.check(dataset.episodes, list(episodes[0][1]))
    assert [episode.task for episode in dataset.episodes] == list(tasks)
    for episode, (_, columns) in zip(dataset.episodes, episodes, strict=True):
        found = dataset.read(episode, list(columns))
        assert found["observation.images.image"].shape == columns["observation.images.image"].shape
        np.testing.assert_array_equal(found["action"], columns["action"])


@needs_av
def test_a_video_of_another_rate_or_size_is_refused(tmp_path: Path) -> None:
    folder = write_v30(tmp_path / "set", [("reach", steps(4, image=32))], images="video")
    features = json.loads((folder / "meta/info.json").read_text())["features"]
    features["observation.images.image"]["shape"] = [64, 64, 3]
    edit_info(folder, features=features)
    dataset = open_dataset(folder)
    with pytest.raises(ConfigError, match=r"file-000.mp4: has images \[32, 32, 3\], its data set says \[64, 64, 3\]"):
        dataset.check(dataset.episodes, ["observation.images.image"])


@needs_av
def test_a_video_with_another_number_of_frames_than_steps_is_refused(tmp_path: Path) -> None:
    name = "observation.images.image"
    folder = write_v30(tmp_path / "set", [("reach", steps(6, image=32)), ("reach", steps(4, image=32))], images="video")
    shorter = write_v30(tmp_path / "shorter", [("reach", steps(8, image=32))], images="video")
    [video], [other] = folder.rglob("*.mp4"), shorter.rglob("*.mp4")
    video.write_bytes(other.read_bytes())
    dataset = open_dataset(folder)
    dataset.check(dataset.episodes[:1], [name])
    with pytest.raises(ConfigError, match=r"file-000.mp4: has 8 frames, its episodes need 10$"):
        dataset.check(dataset.episodes, [name])
    whole = VideoPart(other, 0.0, 7, is_whole=True)
    with pytest.raises(ConfigError, match=r"file-000.mp4: has 8 frames, its episode has 7 steps$"):
        check_video(other, [whole], 80, (32, 32, 3))
    check_video(other, [replace(whole, num_frames=8)], 80, (32, 32, 3))


@needs_av
def test_a_part_of_a_video_with_another_length_than_its_episode_is_refused(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    folder = write_v30(tmp_path / "set", [("reach", steps(6, image=32)), ("reach", steps(4, image=32))], images="video")
    [path] = (folder / "meta/episodes").rglob("*.parquet")
    table, column = pq.read_table(path), "videos/observation.images.image/to_timestamp"
    times = [each - 1 / 80 for each in table.column(column).to_pylist()]
    index = table.column_names.index(column)
    pq.write_table(table.set_column(index, column, [times]), path)
    dataset = open_dataset(folder)
    with pytest.raises(ConfigError, match=r"episode 0 has 6 steps, but by videos/\S+/to_timestamp 5 frames$"):
        dataset.check(dataset.episodes, ["observation.images.image"])


def test_an_image_of_another_size_than_described_is_refused_before_a_run(tmp_path: Path) -> None:
    folder, name = write_v30(tmp_path / "set", [("reach", steps(4, image=16))]), "observation.images.image"
    features = json.loads((folder / "meta/info.json").read_text())["features"]
    features[name]["shape"] = [16, 32, 3]
    edit_info(folder, features=features)
    dataset = open_dataset(folder)
    with pytest.raises(ConfigError, match=r"has images \[16, 16, 3\], its description says \[16, 32, 3\]$"):
        dataset.check(dataset.episodes, [name])


@WRITERS
def test_an_episode_that_is_listed_twice_is_refused(write: Callable[..., Path], tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = write(tmp_path / "set", EPISODES)
    if (lines := folder / "meta/episodes.jsonl").is_file():
        lines.write_text(lines.read_text() + lines.read_text().splitlines()[1] + "\n")
    else:
        [path] = (folder / "meta/episodes").rglob("*.parquet")
        table = pq.read_table(path)
        pq.write_table(pa.concat_tables([table, table.slice(1, 1)]), path)
    with pytest.raises(ConfigError, match=r"^\S+set: meta/episodes\S* has episode 1 twice$"):
        open_dataset(folder)


def test_statistics_of_other_episodes_than_there_are_are_refused(tmp_path: Path) -> None:
    folder = write_v21(tmp_path / "set", EPISODES)
    lines = (folder / "meta/episodes_stats.jsonl").read_text().splitlines()
    (folder / "meta/episodes_stats.jsonl").write_text("\n".join(lines[:2]))
    with pytest.raises(ConfigError, match=r"has statistics of 2 episodes, meta/episodes.jsonl has 3$"):
        open_dataset(folder).statistics("action")


@pytest.mark.parametrize(
    ("column", "message"), [("timestamp", "timestamps of episode 0"), ("episode_index", "cannot be")]
)
def test_text_for_the_numbers_of_steps_is_refused(column: str, message: str, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    folder = write_v21(tmp_path / "set", EPISODES)
    path = folder / "data/chunk-000/episode_000000.parquet"
    table = pq.read_table(path)
    words = ["word"] * len(table)
    pq.write_table(table.set_column(table.column_names.index(column), column, [words]), path)
    dataset = open_dataset(folder)
    with pytest.raises(ConfigError, match=message):
        dataset.check(dataset.episodes, ["action"])


@WRITERS
def test_an_episode_of_another_task_than_its_steps_is_refused(write: Callable[..., Path], tmp_path: Path) -> None:
    """Tools that merge data sets number the tasks of one of them anew, and may leave its steps as they are."""
    folder = write(tmp_path / "set", EPISODES)
    swap_tasks(folder)
    dataset = open_dataset(folder)
    told = r"set: episode 0 has the task 'reach' by its description, but 'push' by task_index=0 of its steps$"
    with pytest.raises(ConfigError, match=told):
        dataset.check(dataset.episodes, ["action"])


def test_a_task_without_a_text_is_refused(tmp_path: Path) -> None:
    folder = write_v21(tmp_path / "set", EPISODES)
    tasks = folder / "meta/tasks.jsonl"
    tasks.write_text(tasks.read_text().splitlines()[0])
    dataset = open_dataset(folder)
    dataset.check([dataset.episodes[0]], ["action"])
    with pytest.raises(
        ConfigError, match=r"episode 1 has the task 'push' by its description, but None by task_index=1"
    ):
        dataset.check(dataset.episodes, ["action"])
    tasks.write_text('{"task_index": 0, "task": "reach"}\n{"task_index": 0, "task": "push"}\n')
    dataset = open_dataset(folder)
    with pytest.raises(ConfigError, match=r"set: meta/tasks.jsonl has task_index 0 twice$"):
        dataset.check(dataset.episodes, ["action"])
    tasks.unlink()
    dataset = open_dataset(folder)
    dataset.check(dataset.episodes, ["action"])


def swap_tasks(folder: Path) -> None:
    """Exchange the texts of the first two tasks, but not in the descriptions of episodes."""
    import pyarrow.parquet as pq

    if (lines := folder / "meta/tasks.jsonl").is_file():
        first, other = (json.loads(line) for line in lines.read_text().splitlines())
        first["task"], other["task"] = other["task"], first["task"]
        lines.write_text(json.dumps(first) + "\n" + json.dumps(other) + "\n")
        return
    table = pq.read_table(folder / "meta/tasks.parquet")
    index = table.column_names.index("task_index")
    pq.write_table(
        table.set_column(index, "task_index", [table.column("task_index").to_pylist()[::-1]]),
        folder / "meta/tasks.parquet",
    )


@needs_av
def test_episodes_that_share_frames_of_a_video_are_refused(tmp_path: Path) -> None:
    """An episode whose place is that of another one would be cloned from the other's images."""
    import pyarrow.parquet as pq

    written = [("reach", steps(5, 1, image=32)), ("reach", steps(5, 2, image=32))]
    folder = write_v30(tmp_path / "set", written, images="video")
    [path] = (folder / "meta/episodes").rglob("*.parquet")
    table = pq.read_table(path)
    for name in ("from_timestamp", "to_timestamp"):
        column = f"videos/observation.images.image/{name}"
        times = [table.column(column).to_pylist()[0]] * 2
        table = table.set_column(table.column_names.index(column), column, [times])
    pq.write_table(table, path)
    dataset = open_dataset(folder)
    with pytest.raises(ConfigError, match=r"file-000.mp4: two of its episodes have the frame at 0.000 s$"):
        dataset.check(dataset.episodes, ["observation.images.image"])


@WRITERS
def test_timestamps_that_do_not_fit_the_rate_are_refused(write: Callable[..., Path], tmp_path: Path) -> None:
    folder = write(tmp_path / "set", EPISODES, fps=40)
    edit_info(folder, fps=80)
    dataset = open_dataset(folder)
    with pytest.raises(ConfigError, match=r"says fps=80, but frame 1 of episode 0 is at 0.0250 s instead of 0.0125 s"):
        dataset.check(dataset.episodes, ["action"])


def test_a_description_that_does_not_fit_its_files_is_refused(tmp_path: Path) -> None:
    folder = write_v21(tmp_path / "set", EPISODES)
    lines = (folder / "meta/episodes.jsonl").read_text().replace('"length": 5', '"length": 6')
    (folder / "meta/episodes.jsonl").write_text(lines)
    dataset = open_dataset(folder)
    with pytest.raises(ConfigError, match=r"episode 1 has 5 steps in episode_000001.parquet, its description says 6"):
        dataset.check(dataset.episodes, ["action"])
    (folder / "data/chunk-000/episode_000002.parquet").write_bytes(b"no parquet")
    with pytest.raises(ConfigError, match=r"episode_000002.parquet: cannot be read"):
        dataset.check(dataset.episodes, ["action"])
    with pytest.raises(ConfigError, match=r"episode_000000.parquet: has no column reward, only observation.state, act"):
        dataset.check(dataset.episodes[:1], ["reward"])


def rename(path: Path, old: str, new: str) -> None:
    """Replace a text in a file, which must contain it."""
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def shorten(path: Path) -> None:
    """Write each JSON document of a file in one line."""
    documents = [path.read_text()] if path.suffix == ".json" else path.read_text().splitlines()
    path.write_text("".join(json.dumps(json.loads(document)) + "\n" for document in documents))


@WRITERS
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"mean"', '"middle"', " has no mean of action"),
        ('"count": [', '"count": ["many", ', ", action: invalid literal"),
        ('"std": [', '"std": [NaN, ', ", action: must be finite numbers of one shape"),
        ('"std": [', '"std": [-', ", action: must have no negative std"),
        ('"min": [', '"min": [9, ', ", action: must be finite numbers of one shape"),
        ('"count"', '"max": [-9, -9, -9, -9], "count"', ", action: must have no min above max"),
        ('"count"', '"mean": [0, 0, 9, 0], "count"', ", action: must have no mean outside of min and max"),
        ('"q99"', '"q99": [-9, -9, -9, -9], "other"', ", action: must have no q01 above q99"),
        ('"count": [', '"count": [0, ', ", action: must be finite numbers of one shape, over at least one step"),
    ],
    ids=["missing", "no number", "NaN", "negative", "of two sizes", "min", "mean", "quantile", "no steps"],
)
def test_damaged_statistics_are_refused(
    write: Callable[..., Path], old: str, new: str, message: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "set", EPISODES)
    [path] = [each for each in (folder / "meta/stats.json", folder / "meta/episodes_stats.jsonl") if each.is_file()]
    shorten(path)
    rename(path, old, new)
    with pytest.raises(ConfigError, match=f"^{folder}: meta/{path.name}{message}"):
        open_dataset(folder).statistics("action")
    assert open_dataset(folder).statistics("other") is None


def test_numbers_of_another_size_than_described_are_refused(tmp_path: Path) -> None:
    folder = write_v21(tmp_path / "set", [("reach", steps(8, action=4))])
    features = json.loads((folder / "meta/info.json").read_text())["features"]
    edit_info(folder, features=features | {"action": {"dtype": "float32", "shape": [8]}})  # 8 steps of 4 are 4 of 8
    dataset = open_dataset(folder)
    with pytest.raises(ConfigError, match=r"action of episode 0 has 32 values of float32 in 8 steps; .* numbers \[8\]"):
        dataset.read(dataset.episodes[0], ["action"])


def test_a_pattern_that_needs_another_name_is_refused(tmp_path: Path) -> None:
    folder = write_v21(tmp_path / "set", EPISODES)
    edit_info(folder, data_path="data/{chunk}/x.parquet")
    dataset = open_dataset(folder)
    with pytest.raises(ConfigError, match=r"has data_path=data/{chunk}/x.parquet; allowed are episode_index, "):
        dataset.check(dataset.episodes, ["action"])


@WRITERS
def test_an_episode_of_an_hour_has_the_timestamps_of_its_rate(write: Callable[..., Path], tmp_path: Path) -> None:
    dataset = open_dataset(write(tmp_path / "set", [("reach", steps(36000, state=1, action=1))], fps=9.7))
    dataset.check(dataset.episodes, ["action"])


def test_pictures_that_are_damaged_or_of_other_sizes_are_refused(tmp_path: Path) -> None:
    small, large = picture(4), picture(6)
    unreadable = "the image of frame 1 of an episode cannot be read"
    for cell, message in (
        (large, r"images of an episode are \[4, 4, 3\] and \[6, 6, 3\]; allowed is one size"),
        (depth(), "frame 1 of an episode has numbers of more than 8 bits, as a depth image has"),
        ({"bytes": b"no image", "path": None}, unreadable),
        ({"bytes": None, "path": None}, unreadable),
        ({"bytes": None, "path": "gone.png"}, unreadable),
        (None, unreadable),
    ):
        with pytest.raises(ConfigError, match=message):
            decode_pictures(tmp_path, [small, cell])


def depth() -> dict[str, Any]:
    """Return a cell with an image of 16 bits."""
    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 4), 3000, np.uint16)).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def picture(size: int) -> dict[str, Any]:
    """Return a cell with a black image."""
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((size, size, 3), np.uint8)).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda folder: edit_info(folder, codebase_version="v2.0"),
            "has the version v2.0; allowed are LeRobot's v2.1 ",
        ),
        (lambda folder: edit_info(folder, features={"action": {"dtype": "float32"}}), "meta/info.json has no shape"),
        (lambda folder: (folder / "meta/info.json").write_text("{"), "meta/info.json is damaged"),
        (lambda folder: (folder / "meta/episodes.jsonl").unlink(), "has no meta/episodes.jsonl"),
        (lambda folder: edit_info(folder, fps=0), "meta/info.json has fps=0; allowed are positive numbers$"),
        (lambda folder: edit_info(folder, fps=float("nan")), "meta/info.json has fps=nan; allowed are positive"),
        (
            lambda folder: rename(folder / "meta/episodes.jsonl", '"length"', '"len"'),
            "meta/episodes.jsonl has no leng",
        ),
        (lambda folder: rename(folder / "meta/episodes.jsonl", ": 5", ': "x"'), "meta/episodes.jsonl is damaged: len"),
        (lambda folder: rename(folder / "meta/episodes.jsonl", ": 5", ": 5.5"), "meta/episodes.jsonl is damaged: len"),
        (lambda folder: rename(folder / "meta/episodes.jsonl", ": 5", ": -5"), "meta/episodes.jsonl is damaged: leng"),
        (lambda folder: (folder / "meta/episodes.jsonl").write_text("[1]"), "meta/episodes.jsonl is damaged: list ind"),
        (lambda folder: (folder / "meta/info.json").unlink(), "has neither meta/info.json nor data/metadata.json; al"),
    ],
    ids=[
        "version",
        "features",
        "info",
        "episodes",
        "rate 0",
        "rate NaN",
        "length",
        "no number",
        "half a step",
        "negative",
        "row",
        "no set",
    ],
)
def test_a_folder_that_cannot_be_read_is_refused(spoil: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    folder = write_v21(tmp_path / "set", EPISODES)
    spoil(folder)
    with pytest.raises(ConfigError, match=f"^{folder}: {message}"):
        open_dataset(folder)


@needs_av
@pytest.mark.skipif(LEROBOT not in os.environ, reason=f"LeRobot is not installed; {LEROBOT} names its interpreter")
def test_a_data_set_that_lerobot_itself_wrote_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    env = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    env.pop("PYTHONPATH", None)
    command = [os.environ[LEROBOT], "-c", WRITE_WITH_LEROBOT, str(folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    dataset, names = open_dataset(folder), ["action", "observation.images.image"]
    assert dataset.fps == 10 and [(each.num_steps, each.task) for each in dataset.episodes] == [
        (6, "reach"),
        (4, "push"),
    ]
    dataset.check(dataset.episodes, names)
    rng = np.random.default_rng(0)
    for episode in dataset.episodes:
        found = dataset.read(episode, names)
        actions = np.stack([rng.standard_normal(4).astype(np.float32) for _ in range(episode.num_steps)])
        assert found["action"].tobytes() == actions.tobytes()
        greys = 20 * np.arange(episode.num_steps)
        assert np.abs(found["observation.images.image"].mean(axis=(1, 2, 3)) - greys).max() < 3

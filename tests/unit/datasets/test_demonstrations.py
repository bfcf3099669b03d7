"""Columns of demonstrations, made of features of a data set."""

from pathlib import Path

import numpy as np
import pytest
from lerobot_folders import edit_info, steps, write_v21, write_v30

from embodyflow.datasets.demonstrations import Column, DatasetDemonstrations
from embodyflow.datasets.opening import open_dataset
from embodyflow.errors import ConfigError

pytest.importorskip("pyarrow", reason="pyarrow, of the extra datasets, is not installed")

FLOAT, IMAGE = np.dtype(np.float32), "observation.images.image"
ACTIONS = Column(("action",), (4,), FLOAT)


def camera(size: int, feature: str = IMAGE) -> dict[str, Column]:
    return {"image": Column((feature,), (size, size, 3), np.dtype(np.uint8))}


def test_features_are_joined_in_their_order_and_statistics_with_them(tmp_path: Path) -> None:
    columns = steps(6, state=3)
    dataset = open_dataset(write_v30(tmp_path / "set", [("reach", columns)]))
    both = Column(("action", "observation.state"), (7,), np.dtype(np.float64))
    demonstrations = DatasetDemonstrations(dataset, {"state": both, "actions": ACTIONS})
    found = demonstrations.read(dataset.episodes[0])
    expected = np.concatenate([columns["action"], columns["observation.state"]], axis=1)
    np.testing.assert_array_equal(found["state"], expected)
    assert found["state"].dtype == np.float64 and found["actions"].tobytes() == columns["action"].tobytes()
    np.testing.assert_allclose(demonstrations.statistics("state").mean, expected.mean(0, np.float64))


def test_images_become_as_large_as_those_of_the_environment(tmp_path: Path) -> None:
    columns = steps(2, image=16)
    dataset = open_dataset(write_v30(tmp_path / "set", [("reach", columns)]))
    found = DatasetDemonstrations(dataset, camera(8)).read(dataset.episodes[0])["image"]
    means = columns[IMAGE].reshape(2, 8, 2, 8, 2, 3).mean(axis=(2, 4))
    assert found.shape == (2, 8, 8, 3) and np.abs(found - means).max() <= 1


def test_a_missing_camera_and_a_wrong_kind_of_column(tmp_path: Path) -> None:
    blind = open_dataset(write_v21(tmp_path / "blind", [("reach", steps(4))]))
    with pytest.raises(ConfigError, match=r"^warm_start.dataset.columns.image: the data set has no \S+; it has none$"):
        DatasetDemonstrations(blind, camera(16))
    seeing = open_dataset(write_v30(tmp_path / "seeing", [("reach", steps(4, image=16))]))
    with pytest.raises(ConfigError, match=f"columns.image: the data set has no front; it has {IMAGE}$"):
        DatasetDemonstrations(seeing, camera(16, "front"))
    with pytest.raises(ConfigError, match=r"columns.image=action: holds numbers; must hold images"):
        DatasetDemonstrations(seeing, camera(16, "action"))
    with pytest.raises(ConfigError, match=f"columns.actions={IMAGE}: holds images; must hold numbers"):
        DatasetDemonstrations(seeing, {"actions": Column((IMAGE,), (4,), FLOAT)})


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    columns = steps(4)
    columns["action"][2, 1] = np.nan
    dataset = open_dataset(write_v30(tmp_path / "set", [("reach", columns)]))
    with pytest.raises(ConfigError, match="set: action of episode 0 has NaN or inf"):
        DatasetDemonstrations(dataset, {"actions": ACTIONS}).read(dataset.episodes[0])


def test_numbers_that_the_column_cannot_hold_are_refused(tmp_path: Path) -> None:
    columns = steps(4)
    columns["action"] = columns["action"].astype(np.float64)
    columns["action"][2, 1] = 1e300
    dataset = open_dataset(write_v30(tmp_path / "set", [("reach", columns)]))
    for dtype in (FLOAT, np.dtype(np.int64)):
        demonstrations = DatasetDemonstrations(dataset, {"actions": Column(("action",), (4,), dtype)})
        with pytest.raises(ConfigError, match=rf"action of episode 0 has \S+, which the .*{dtype.name} cannot hold"):
            demonstrations.check(dataset.episodes)


def test_the_check_reads_the_numbers_of_the_chosen_episodes(tmp_path: Path) -> None:
    good, bad = steps(4), steps(4)
    bad["action"][2, 1] = np.inf
    dataset = open_dataset(write_v30(tmp_path / "set", [("reach", good), ("reach", bad)]))
    demonstrations = DatasetDemonstrations(dataset, {"actions": ACTIONS})
    demonstrations.check(dataset.episodes[:1])
    with pytest.raises(ConfigError, match="set: action of episode 1 has NaN or inf"):
        demonstrations.check(dataset.episodes)


def test_text_is_no_column_and_an_episode_without_steps_no_demonstration(tmp_path: Path) -> None:
    folder = write_v21(tmp_path / "set", [("reach", steps(4))])
    edit_info(folder, features={"action": {"dtype": "string", "shape": [1]}})
    with pytest.raises(ConfigError, match=r"columns.actions=action: holds text; must hold numbers"):
        DatasetDemonstrations(open_dataset(folder), {"actions": ACTIONS})
    edit_info(folder, features={"action": {"dtype": "float32", "shape": [4]}})
    lines = (folder / "meta/episodes.jsonl").read_text().replace('"length": 4', '"length": 0')
    (folder / "meta/episodes.jsonl").write_text(lines)
    with pytest.raises(ConfigError, match=r"set: episode 0 has no steps$"):
        DatasetDemonstrations(open_dataset(folder), {"actions": ACTIONS}).choose("reach", 1)

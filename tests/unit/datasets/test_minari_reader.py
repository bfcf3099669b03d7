"""Reading Minari data sets that Minari itself wrote."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

from embodyflow.datasets.demonstrations import Column, DatasetDemonstrations
from embodyflow.datasets.opening import open_dataset
from embodyflow.errors import ConfigError

minari = pytest.importorskip("minari", reason="minari, of the extra minari, is not installed")

ACTIONS = Box(-1, 1, (2,), np.float32)


@pytest.fixture(params=["hdf5", "arrow"])
def format_name(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip({"hdf5": "h5py", "arrow": "pyarrow"}[request.param])
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return request.param


def write(format_name: str, folder: Path, space: Any, episodes: list[tuple[Any, np.ndarray]]) -> Path:
    from minari.data_collector import EpisodeBuffer

    buffers = [
        EpisodeBuffer(
            id=index,
            observations=observations,
            actions=actions,
            rewards=np.zeros(len(actions)),
            terminations=np.arange(len(actions)) == len(actions) - 1,
            truncations=np.zeros(len(actions), bool),
        )
        for index, (observations, actions) in enumerate(episodes)
    ]
    name = f"test/mine-{format_name}-v0"
    minari.create_dataset_from_buffers(
        name, buffer=buffers, observation_space=space, action_space=ACTIONS, data_format=format_name
    )
    return folder / name


def actions_of(length: int) -> np.ndarray:
    return np.random.default_rng(length).uniform(-1, 1, (length, 2)).astype(np.float32)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_vector_of_observations_is_the_state(format_name: str, tmp_path: Path) -> None:
    states = [np.random.default_rng(n).standard_normal((n + 1, 3)).astype(np.float32) for n in (4, 6)]
    written = [(state, actions_of(len(state) - 1)) for state in states]
    dataset = open_dataset(write(format_name, tmp_path, Box(-9, 9, (3,), np.float32), written))
    task = f"test/mine-{format_name}-v0"
    assert [(each.index, each.num_steps, each.task) for each in dataset.episodes] == [(0, 4, task), (1, 6, task)]
    for episode, (state, actions) in zip(dataset.episodes, written, strict=True):
        found = dataset.read(episode, ["observation.state", "action"])
        assert found["observation.state"].tobytes() == state[:-1].tobytes()
        assert found["action"].tobytes() == actions.tobytes()
    columns = {"state": Column(("observation.state",), (3,), np.dtype(np.float32))}
    demonstrations = DatasetDemonstrations(dataset, columns)
    assert demonstrations.fps is None and len(demonstrations.choose(task, 2)) == 2
    with pytest.raises(ConfigError, match=r"has no statistics of observation.state; allowed without them"):
        demonstrations.statistics("state")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_entries_of_a_dictionary_are_features(format_name: str, tmp_path: Path) -> None:
    space = Dict({"arm": Dict({"joints": Box(-9, 9, (3,), np.float64)}), "top": Box(0, 255, (32, 32, 3), np.uint8)})
    joints, greys = np.random.default_rng(0).standard_normal((5, 3)), np.arange(5)[:, None, None, None] * 40
    images = np.broadcast_to(greys, (5, 32, 32, 3)).astype(np.uint8)
    folder = write(format_name, tmp_path, space, [({"arm": {"joints": joints}, "top": images}, actions_of(4))])
    dataset = open_dataset(folder)
    assert set(dataset.features) == {"observation.arm.joints", "observation.images.top", "action"}
    found = dataset.read(dataset.episodes[0], list(dataset.features))
    assert found["observation.arm.joints"].tobytes() == joints[:-1].tobytes()
    assert np.abs(found["observation.images.top"].astype(int) - images[:-1]).max() <= 2  # Minari keeps JPEG


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_damaged_data_set_is_refused(format_name: str, tmp_path: Path) -> None:
    folder = write(format_name, tmp_path, Box(-9, 9, (3,), np.float32), [(np.zeros((3, 3), np.float32), actions_of(2))])
    (folder / "data/metadata.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"^{folder}: Minari cannot read it: "):
        open_dataset(folder)

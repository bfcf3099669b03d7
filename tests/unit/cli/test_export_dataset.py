"""A run's episodes as a data set: what is written, read back and cloned from."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import tasks
from embodyflow.cli.episodes import export_dataset as module
from embodyflow.cli.episodes.episode_list import EpisodeFilter
from embodyflow.cli.episodes.export_dataset import ExportOptions
from embodyflow.cli.main import main
from embodyflow.config import RunConfig
from embodyflow.config.run import WarmStartConfig
from embodyflow.data.batches import Columns, to_batch
from embodyflow.datasets.opening import open_dataset
from embodyflow.errors import ConfigError
from embodyflow.policies.embodied.tiny_vla.policy_tiny_vla import TinyVLAPolicy
from embodyflow.record.run_folder import UNRESTORABLE_FILE, RunFolder
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout
from embodyflow.rollouts.replayed_steps import replayed_steps
from embodyflow.simulation.make_env import make_env
from embodyflow.training.imitation.imitation import ActionSamples, Imitation

pytest.importorskip("pyarrow", reason="pyarrow, of the extra datasets, is not installed")

Compose = Callable[..., RunConfig]
LEROBOT = "EMBODYFLOW_LEROBOT_PYTHON"
"""Environment variable with the interpreter of an environment with LeRobot, whose pins exclude ours."""

READ_WITH_LEROBOT = """
import sys
import numpy
from lerobot.datasets.lerobot_dataset import LeRobotDataset

dataset = LeRobotDataset("local/exported", root=sys.argv[1])
rows = [dataset[index] for index in range(len(dataset))]
names = [name for name in rows[0] if name != "task"]
columns = {name: numpy.stack([row[name].numpy() for row in rows]) for name in names}
tasks = numpy.array([row["task"] for row in rows])
mean = dataset.meta.stats["action"]["mean"]
numpy.savez(sys.argv[2], tasks=tasks, mean=mean, fps=dataset.fps, episodes=dataset.num_episodes, **columns)
"""


@pytest.fixture(scope="module")
def config(tiny_config: Compose, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    return tiny_config(f"run_root={tmp_path_factory.mktemp('runs')}", "run_id=mine", "env.max_steps=18")


@pytest.fixture(scope="module")
def played(config: RunConfig) -> Columns:
    torch.manual_seed(0)
    rollout = EmbodiedRollout(config, 0, 1)
    rows = rollout.play(rollout.training_episodes(0, 1), "train", (0, 1, "rollout"))
    rollout.close()
    return rows


@pytest.fixture(scope="module")
def run(config: RunConfig, played: Columns) -> Path:
    """The folder of a run that keeps four episodes of 18 steps, in chunks of 5."""
    folder = RunFolder.create(config)
    place = {"folder": str(folder.episodes.begin(1)), "part": "played-rollout", "trained": False}
    tasks.keep_episodes(to_batch(played), place, worker=SimpleNamespace(rank=0, config=config))
    trained = to_batch({name: values[:2] for name, values in played.items()})
    tasks.keep_episodes(trained, place | {"part": "trained", "trained": True}, worker=SimpleNamespace(rank=0))
    folder.episodes.commit(1, keep=2)
    return folder.path


@pytest.fixture(scope="module")
def exported(run: Path) -> Path:
    assert main(["export-dataset", str(run)]) == 0
    return run / "dataset"


@pytest.fixture(scope="module")
def episodes(config: RunConfig, played: Columns) -> list[Columns]:
    """The steps of the episodes by their replay."""
    env = make_env(config.env, config.env.tasks[0], "train")
    return [replayed_steps(env, {name: column[row] for name, column in played.items()}) for row in range(4)]


def test_the_steps_of_a_replay_are_those_of_the_record(played: Columns, episodes: list[Columns]) -> None:
    for row, steps in enumerate(episodes):
        assert steps["state"][::5].tobytes() == played["state"][row].tobytes()
        assert steps["action"].tobytes() == played["actions"][row].reshape(20, 4)[:18].tobytes()
        assert np.isclose(steps["reward"].sum(), played["episode_return"][row])
        assert steps["done"].tolist() == [False] * 17 + [True] and steps["success"].any() == played["success"][row]


def test_numbers_make_the_round_trip_bit_identical(exported: Path, episodes: list[Columns], played: Columns) -> None:
    dataset = open_dataset(exported)
    assert dataset.fps == 80 and [each.task for each in dataset.episodes] == ["reach the goal position"] * 4
    names = {"observation.state": "state", "action": "action"} | {f"next.{n}": n for n in ("reward", "done", "success")}
    for episode, steps in zip(dataset.episodes, episodes, strict=True):
        found = dataset.read(episode, names)
        assert all(found[name].tobytes() == steps[column].tobytes() for name, column in names.items())
    sources = json.loads((exported / "meta/embodyflow.json").read_text())
    assert [each["uid"] for each in sources["episodes"]] == played["uid"].tolist() and sources["run"] == "mine"


def test_cloning_from_the_data_set_is_cloning_from_the_episodes(
    tiny_config: Compose, exported: Path, episodes: list[Columns], tmp_path: Path
) -> None:
    config = tiny_config(
        "env.max_steps=18",
        f"warm_start.dataset={{path:{exported},statistics:demonstrations}}",
        "warm_start.num_demos=4",
    )
    halves = [EmbodiedRollout(config, rank, 2) for rank in (0, 1)]
    shares = [half.demonstrate() for half in halves]
    whole = {name: np.concatenate([share[name] for share in shares])[[0, 2, 1, 3]] for name in shares[0]}
    instruction = halves[0].policy.encode_instruction("reach the goal position")
    expected = {
        "state": np.stack([steps["state"] for steps in episodes]),
        "actions": np.stack([steps["action"] for steps in episodes]),
        "num_steps": np.full(4, 18),
        "uid": np.arange(4),
        "instruction_ids": np.stack([instruction] * 4),
    }
    assert whole.keys() == expected.keys()
    assert all(whole[name].tobytes() == values.tobytes() for name, values in expected.items())
    assert fitted(config, whole) == fitted(config, expected)


def fitted(config: RunConfig, demos: Columns) -> list[bytes]:
    """Return the weights after three steps of cloning."""
    torch.manual_seed(0)
    policy = TinyVLAPolicy(config.policy, "cpu")
    assert isinstance(config.warm_start, WarmStartConfig)
    samples = ActionSamples(policy, to_batch(demos), config)
    Imitation(policy.model, samples, config.warm_start, seed=0, part=0, num_parts=1).advance(3)
    return [value.numpy().tobytes() for value in policy.model.state_dict().values()]


def test_the_statistics_of_the_data_set_travel_with_the_policy(tiny_config: Compose, exported: Path) -> None:
    config = tiny_config("env.max_steps=18", f"warm_start.dataset={exported}", "warm_start.num_demos=1")
    rollout, policy = EmbodiedRollout(config, 0, 1), TinyVLAPolicy(config.policy, "cpu")
    ActionSamples(policy, to_batch(rollout.demonstrate()), config)  # one of the four episodes
    found = open_dataset(exported).statistics("observation.state")
    assert found is not None and found.count == 4 * 18
    weights: dict[str, Any] = policy.model.state_dict()
    np.testing.assert_array_equal(weights["embed.state_mean"], found.mean.astype(np.float32))
    np.testing.assert_array_equal(weights["embed.state_std"], found.std.astype(np.float32).clip(1e-2))


def test_only_the_chosen_episodes_are_written(run: Path, played: Columns, tmp_path: Path) -> None:
    output = tmp_path / "failed"
    assert main(["export-dataset", str(run), "--output", str(output), "--outcome", "failure", "--fps", "20"]) == 0
    dataset = open_dataset(output)
    assert len(dataset.episodes) == int((~played["success"]).sum()) and dataset.fps == 20


def test_mistakes_are_one_line(run: Path, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*words: str, code: int = 2) -> str:
        assert main(["export-dataset", str(run), *words]) == code
        return capsys.readouterr().err

    assert refused() == f"--output={exported}: exists; allowed is a new folder\n"
    new = ("--output", str(tmp_path / "new"))
    assert "--task=push-v3: allowed are reach-v3" in refused(*new, "--task", "push-v3")
    assert "no episode is chosen" in refused(*new, "--iteration", "7")
    (run / UNRESTORABLE_FILE).write_text('{"reach-v3": "state differs"}')
    assert "cannot be replayed, because their seed does not restore reach-v3" in refused(*new)
    (run / UNRESTORABLE_FILE).unlink()
    assert not (tmp_path / "new").exists()


def test_a_replay_that_differs_leaves_no_data_set(
    run: Path,
    played: Columns,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from embodyflow.cli.episodes import export_dataset as module

    def other_step(chosen: Any, tasks: Any, episode: dict[str, Any]) -> bool:
        episode["state"] = episode["state"].copy()
        episode["state"][2, 0] += 1
        return True

    monkeypatch.setattr(module, "is_chosen", other_step)
    assert main(["export-dataset", str(run), "--output", str(tmp_path / "new")]) == 1
    assert (
        f"replay: differs from the record; episode {played['uid'][0]}: state before decision 2, entry 0: "
        in capsys.readouterr().err
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(LEROBOT not in os.environ, reason=f"LeRobot is not installed; {LEROBOT} names its interpreter")
def test_lerobots_own_reader_loads_it(exported: Path, episodes: list[Columns], tmp_path: Path) -> None:
    command = [os.environ[LEROBOT], "-c", READ_WITH_LEROBOT, str(exported), str(tmp_path / "read.npz")]
    env = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    env.pop("PYTHONPATH", None)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    read = np.load(tmp_path / "read.npz")
    assert read["fps"] == 80 and read["episodes"] == 4 and set(read["tasks"]) == {"reach the goal position"}
    names = {"observation.state": "state", "action": "action", "next.reward": "reward", "next.done": "done"}
    for name, column in names.items():
        assert read[name].tobytes() == np.concatenate([steps[column] for steps in episodes]).tobytes(), name
    actions = np.concatenate([steps["action"] for steps in episodes])
    np.testing.assert_allclose(read["mean"], actions.mean(0, dtype=np.float64), rtol=1e-12)
    assert read["frame_index"].tolist() == [*range(18)] * 4 and read["episode_index"].tolist() == sorted(
        [0, 1, 2, 3] * 18
    )


def test_a_place_that_cannot_be_written_is_refused_before_any_replay(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_write", lambda *_: pytest.fail("it replays"))
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for output, reason in (("file/new", "cannot be created: "), ("link", "exists; allowed is a new folder")):
        assert main(["export-dataset", str(run), "--output", str(tmp_path / output)]) == 2
        assert capsys.readouterr().err.startswith(f"--output={tmp_path}/{output}: {reason}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


@pytest.mark.parametrize("end", [SystemExit(130), OSError(28, "No space left on device")])
def test_an_export_that_ends_early_leaves_nothing(
    end: BaseException, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(config: object, episodes: object, options: object, to: Path) -> int:
        (to / "data").mkdir()
        raise end

    monkeypatch.setattr(module, "_write", write)
    with pytest.raises(type(end)):
        module.export_dataset(run, EpisodeFilter(), ExportOptions(tmp_path / "new"))
    assert not list(tmp_path.iterdir())


def test_of_two_exports_to_one_place_the_second_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(config: object, episodes: object, options: object, to: Path) -> int:
        (tmp_path / "new" / "of-the-first").mkdir(parents=True)
        return 1

    monkeypatch.setattr(module, "_write", write)
    with pytest.raises(ConfigError, match=r"^--output=.*/new: cannot be created: "):
        module.export_dataset(run, EpisodeFilter(), ExportOptions(tmp_path / "new"))
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize("fps", ["0", "-1", "nan", "inf"])
def test_frames_per_second_are_above_zero(
    fps: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export-dataset", str(run), "--output", str(tmp_path / "new"), f"--fps={fps}"]) == 2
    assert capsys.readouterr().err == f"--fps={fps}: must be above 0\n"
    assert not list(tmp_path.iterdir())

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import validate_config
from embodyflow.errors import ConfigError, DiskFullError
from embodyflow.record.ledger import Ledger
from embodyflow.record.run_folder import RunFolder, unfinished_runs


@pytest.fixture
def config(tiny_config, tmp_path: Path) -> RunConfig:
    return tiny_config(f"run_root={tmp_path}/runs", "run_id=mine")


@pytest.fixture
def folder(config: RunConfig) -> RunFolder:
    return RunFolder.create(config)


def commit(folder: RunFolder, iteration: int, keep: int = 2, content: str = "weights") -> None:
    (folder.checkpoints.begin(iteration) / "state").write_text(content)
    folder.checkpoints.commit(iteration, {"iteration": iteration}, keep)


def test_the_configuration_comes_back_as_it_was(config: RunConfig, folder: RunFolder) -> None:
    assert validate_config(folder.config()) == config
    assert validate_config(RunFolder.open(config.run_root, "mine").config()) == config


def test_a_name_is_not_used_twice(config: RunConfig, folder: RunFolder) -> None:
    folder.metrics.append({"iteration": 1})
    with pytest.raises(ConfigError, match=r"run_id=mine: .* exists; choose another run_id or resume=mine"):
        RunFolder.create(config)
    assert folder.metrics.read() == [{"iteration": 1}]


def test_a_folder_that_cannot_be_created_names_the_key(tiny_config, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = tiny_config().model_copy(update={"run_root": f"{tmp_path}/file/runs"})
    with pytest.raises(ConfigError, match=r"run_root=.*/file/runs: .* cannot be created: Not a directory"):
        RunFolder.create(config)


def test_resuming_an_unknown_run_names_those_that_exist(config: RunConfig, folder: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"resume=other: .*/runs/ has no such run; allowed are mine"):
        RunFolder.open(config.run_root, "other")
    with pytest.raises(ConfigError, match=r"resume=mine: .*; allowed are none yet"):
        RunFolder.open(f"{tmp_path}/empty", "mine")


def test_a_checkpoint_counts_from_its_commit_on(folder: RunFolder) -> None:
    assert folder.checkpoints.committed() == []
    (folder.checkpoints.begin(3) / "state").write_text("half")
    assert folder.checkpoints.committed() == []
    assert folder.checkpoints.begin(3).exists() and not list(folder.checkpoints.begin(3).iterdir())
    commit(folder, 3, content="whole")
    assert folder.checkpoints.committed() == [3]
    facts = folder.checkpoints.facts(3)
    assert facts["iteration"] == 3 and facts["files"] == {"state": hashlib.sha256(b"whole").hexdigest()}
    assert (folder.checkpoints.folder(3) / "state").read_text() == "whole"
    folder.checkpoints.begin(4)  # killed here: iteration 3 is still the last
    assert folder.checkpoints.committed() == [3]


def test_the_first_and_the_newest_checkpoints_are_kept(folder: RunFolder) -> None:
    kept = []
    for iteration in range(5):
        commit(folder, iteration)
        kept.append(folder.checkpoints.committed())
    assert kept == [[0], [0, 1], [0, 1, 2], [0, 2, 3], [0, 3, 4]]
    commit(folder, 5, keep=1)
    assert folder.checkpoints.committed() == [0, 5]


def test_committing_again_replaces(folder: RunFolder) -> None:
    commit(folder, 1, content="first")
    commit(folder, 1, content="second")
    assert (folder.checkpoints.folder(1) / "state").read_text() == "second"
    assert folder.checkpoints.committed() == [1]


@contextmanager
def killed_while_it_removes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulate a kill right after this process removed the first file of an existing folder."""
    remove = shutil.rmtree

    def kill(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:  # with it, the folder may be missing
            next(path.iterdir()).unlink()
            raise SystemExit
        remove(path, ignore_errors)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(shutil, "rmtree", kill)
        yield


def test_episodes_left_by_an_interrupted_removal_go_with_the_next_commit(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit_episodes(iteration: int) -> None:
        (folder.episodes.begin(iteration) / "episodes.npz").write_text("")
        folder.episodes.commit(iteration, keep=1)

    commit_episodes(1)
    with killed_while_it_removes(monkeypatch):
        commit_episodes(2)
    commit_episodes(3)
    assert [path.name for path in (folder.path / "episodes").iterdir()] == ["iteration-000003"]


def test_a_checkpoint_left_by_an_interrupted_removal_does_not_count(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for iteration in range(3):
        commit(folder, iteration)
    with killed_while_it_removes(monkeypatch):
        commit(folder, 3)
    assert folder.checkpoints.committed() == [0, 2, 3]
    commit(folder, 4)
    names = sorted(path.name for path in (folder.path / "checkpoints").iterdir())
    assert names == ["iteration-000000", "iteration-000003", "iteration-000004"]


def test_metrics_of_uncommitted_iterations_are_dropped(folder: RunFolder) -> None:
    assert folder.metrics.read() == []
    for iteration in (0, 1, 2, 2, 3):
        folder.metrics.append({"iteration": iteration, "loss": 0.5})
    assert folder.metrics.restore(2, Ledger(folder.ledger_path)) == []
    assert [record["iteration"] for record in folder.metrics.read()] == [0, 1, 2, 2]
    folder.metrics.append({"iteration": 3})
    assert [record["iteration"] for record in folder.metrics.read()] == [0, 1, 2, 2, 3]


def test_a_line_that_a_killed_process_left_half_written_does_not_count(folder: RunFolder) -> None:
    folder.metrics.append({"iteration": 1})
    with folder.metrics.path.open("a") as file:
        file.write('{"iteration": 2, "lo')
    assert folder.metrics.read() == [{"iteration": 1}]
    folder.metrics.restore(1, Ledger(folder.ledger_path))
    folder.metrics.append({"iteration": 2})
    assert folder.metrics.read() == [{"iteration": 1}, {"iteration": 2}]


def test_status_and_summary_are_replaced_whole(folder: RunFolder) -> None:
    folder.write_status("train", 1, 9)
    folder.write_status("train", 2, 9)
    folder.write_summary({"seed": 0})
    status = json.loads((folder.path / "status.json").read_text())
    assert status == {"stage": "train", "iteration": 2, "iterations": 9}
    assert json.loads(folder.summary_path.read_text()) == {"seed": 0}
    assert folder.subfolder("videos") == folder.subfolder("videos") == folder.path / "videos"
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "config.yaml",
        "status.json",
        "summary.json",
        "videos",
    ]


def test_one_process_works_on_a_run_at_a_time(folder: RunFolder) -> None:
    at_work = rf"run_id=mine: process {os.getpid()} is at work on this run"
    with folder.locked(), pytest.raises(ConfigError, match=at_work), RunFolder(folder.path).locked():
        pass
    with folder.locked():
        pass


def test_a_run_that_cannot_be_written_to_is_refused_in_a_line(folder: RunFolder) -> None:
    (folder.path / ".lock").mkdir()
    with pytest.raises(ConfigError, match=r"mine/\.lock: Is a directory; allowed is a writable folder"):
        folder.refuse_if_locked()


def test_a_checkpoint_is_not_begun_where_there_is_no_room(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(folder, 0, content="x" * 1000)
    usage = shutil.disk_usage(folder.path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=900))
    with pytest.raises(DiskFullError, match=r"a checkpoint takes .* are free; make room and resume=mine"):
        folder.checkpoints.begin(1)
    assert folder.checkpoints.committed() == [0]


def test_unfinished_runs_have_a_checkpoint_and_are_neither_complete_nor_locked(tmp_path: Path) -> None:
    names = ("begun", "done", "busy", "nothing-yet", "another-users")
    folders = {name: RunFolder(tmp_path / name) for name in names}
    for name, folder in folders.items():
        folder.path.mkdir()
        Ledger(folder.ledger_path).append("stage", 1, {"node_id": "rollout"})
        if name != "nothing-yet":
            commit(folder, 0)
    folders["done"].write_summary({})
    (folders["another-users"].path / ".lock").mkdir()  # not writable, not even for root
    with folders["busy"].locked():
        assert [folder.path.name for folder in unfinished_runs(tmp_path)] == ["begun"]
    assert {folder.path.name for folder in unfinished_runs(tmp_path)} == {"begun", "busy"}


def test_of_a_checkpoint_that_was_moved_to_another_disk_only_the_link_is_removed(
    folder: RunFolder, tmp_path: Path
) -> None:
    """A run would otherwise end at this commit, and at each one after it."""
    for iteration in (0, 1, 2):
        commit(folder, iteration)
    for iteration in (1, 2):
        shutil.move(folder.checkpoints.folder(iteration), tmp_path / f"moved-{iteration}")
        folder.checkpoints.folder(iteration).symlink_to(tmp_path / f"moved-{iteration}")
    folder.checkpoints.verify(1)
    commit(folder, 2, content="again")  # as a run does that returned to an earlier commit
    commit(folder, 3)
    assert folder.checkpoints.committed() == [0, 2, 3]
    assert sorted(path.name for path in folder.checkpoints.path.iterdir()) == [
        "iteration-000000",
        "iteration-000002",
        "iteration-000003",
    ]
    assert [(tmp_path / f"moved-{each}" / "state").read_text() for each in (1, 2)] == ["weights", "weights"]

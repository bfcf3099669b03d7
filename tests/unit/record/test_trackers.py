from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from waiting import eventually

from embodyflow.record.trackers import open_trackers


def test_no_sink_is_opened_that_was_not_asked_for(tiny_config, tmp_path: Path) -> None:
    config = tiny_config(f"run_root={tmp_path}", "tracking.tensorboard=false")
    assert open_trackers(config) == []
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_reads_back_what_was_logged(tiny_config, tmp_path: Path) -> None:
    [tracker] = open_trackers(tiny_config(f"run_root={tmp_path}", "tracking.tensorboard=true"))
    tracker.log(1, {"reward/score": 0.25, "policy/entropy": 5.0})
    tracker.log(2, {"reward/score": 0.5})
    tracker.close()
    events = EventAccumulator(str(tmp_path / "tiny" / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward/score")] == [(1, 0.25), (2, 0.5)]
    assert [(event.step, event.value) for event in events.Scalars("policy/entropy")] == [(1, 5.0)]


def test_wandb_gets_the_runs_name_folder_and_metrics(
    tiny_config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    config = tiny_config(f"run_root={tmp_path}", "tracking.wandb=offline")
    config.run_dir.mkdir()
    [tracker] = open_trackers(config)
    tracker.log(1, {"reward/score": 0.25})
    run = tracker._run
    assert (run.id, run.project, run.settings._offline) == ("tiny", "embodyflow", True)
    assert run.config["trainer"]["epochs"] == config.trainer.epochs
    tracker.log(1, {"eval/greedy_success_rate": 0.5})  # the evaluation of the same iteration
    tracker.close()
    [records] = config.run_dir.glob("wandb/offline-run-*/run-tiny.wandb")
    names = (b"reward/score", b"eval/greedy_success_rate")
    assert eventually(lambda: all(name in records.read_bytes() for name in names))  # its own process writes the file

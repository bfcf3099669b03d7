from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from waiting import eventually

from embodyflow.record.trackers import Tracker, open_trackers


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


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A picture and an animation."""
    frames = np.random.default_rng(0).integers(256, size=(3, 20, 30, 3), dtype=np.uint8)
    iio.imwrite(tmp_path / "sheet.png", frames[0])
    iio.imwrite(tmp_path / "episodes.gif", frames, duration=100, loop=0)
    return tmp_path / "sheet.png", tmp_path / "episodes.gif"


def log_everything(tracker: Tracker, files: tuple[Path, Path]) -> None:
    tracker.log_histogram(3, "rollout/episode_return", np.array([1.0, 1.0, 2.0]))
    tracker.log_image(3, "episodes/training", files[0])
    tracker.log_video(3, "episodes/training", files[1])


def test_tensorboard_shows_histograms_pictures_and_videos(
    tiny_config, tmp_path: Path, files: tuple[Path, Path]
) -> None:
    [tracker] = open_trackers(tiny_config(f"run_root={tmp_path}", "tracking.tensorboard=true"))
    log_everything(tracker, files)
    tracker.close()
    events = EventAccumulator(str(tmp_path / "tiny" / "tensorboard"))
    events.Reload()
    [histogram] = events.Histograms("rollout/episode_return")
    assert (histogram.step, histogram.histogram_value.num, histogram.histogram_value.max) == (3, 3, 2.0)
    [picture], [video] = events.Images("episodes/training"), events.Images("episodes/training/video")
    assert (picture.step, picture.width, picture.height) == (3, 30, 20)
    assert picture.encoded_image_string == files[0].read_bytes()
    assert video.encoded_image_string == files[1].read_bytes()


def test_a_histogram_leaves_out_what_is_not_finite(tiny_config, tmp_path: Path) -> None:
    [tracker] = open_trackers(tiny_config(f"run_root={tmp_path}", "tracking.tensorboard=true"))
    tracker.log_histogram(1, "advantage/token", np.array([1.0, np.nan, 3.0, np.inf], np.float32))
    tracker.log_histogram(2, "advantage/token", np.array([np.nan]))
    tracker.close()
    events = EventAccumulator(str(tmp_path / "tiny" / "tensorboard"))
    events.Reload()
    [histogram] = events.Histograms("advantage/token")
    values = histogram.histogram_value
    assert (values.num, values.min, values.max, sum(values.bucket)) == (2, 1.0, 3.0, 2)


def test_wandb_gets_histograms_pictures_and_videos(
    tiny_config, tmp_path: Path, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    config = tiny_config(f"run_root={tmp_path}", "run_id=drawn", "tracking.wandb=offline")
    config.run_dir.mkdir()
    [tracker] = open_trackers(config)
    log_everything(tracker, files)
    tracker.close()
    [media] = config.run_dir.glob("wandb/offline-run-*/files/media")
    kept = {path.suffix: path.read_bytes() for path in media.rglob("*") if path.is_file()}
    assert kept == {".png": files[0].read_bytes(), ".gif": files[1].read_bytes()}
    [records] = config.run_dir.glob("wandb/offline-run-*/run-drawn.wandb")
    assert eventually(lambda: b"rollout/episode_return/histogram" in records.read_bytes())


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


def test_wandb_keeps_an_evaluation_that_ends_after_later_iterations(
    tiny_config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    config = tiny_config(f"run_root={tmp_path}", "run_id=late", "tracking.wandb=offline")
    config.run_dir.mkdir()
    [tracker] = open_trackers(config)
    tracker.log(5, {"reward/score": 0.25})
    tracker.log(3, {"eval/greedy_success_rate": 0.5})
    tracker.log(6, {"reward/score": 0.5})
    tracker.close()
    [records] = config.run_dir.glob("wandb/offline-run-*/run-late.wandb")
    names = (b"eval/greedy_success_rate", b"eval/iteration")  # what Weights & Biases drops has no record
    assert eventually(lambda: all(name in records.read_bytes() for name in names))

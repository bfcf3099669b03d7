"""``embodyflow explain`` and ``embodyflow trace``."""

from pathlib import Path
from typing import Any

import pytest

from embodyflow.cli.main import main
from embodyflow.cli.speed.advice import Advice, advice
from embodyflow.cli.speed.iteration_time import IterationTime, iteration_time
from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.graph import load_pipeline
from embodyflow.orchestration.request.request import RunRequest
from embodyflow.process.tracing import recording, span
from embodyflow.record.run_folder import RunFolder

SMALL = ("env.max_steps=20", "evaluation.num_goals=4", "rollout.num_workers=2", "rollout.num_groups=4")


@pytest.fixture(autouse=True)
def quiet_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embodyflow.stack.signals.exit_on_signals", lambda: None)


def config_of(root: Path, *overrides: str) -> RunConfig:
    request = RunRequest(run_id="mine", overrides=(f"run_root={root}", *SMALL, *overrides))
    return compose_config(request.hydra_overrides())


def line(iteration: int, scale: float = 1.0, **more: float) -> dict[str, Any]:
    """Return the metrics of an iteration: 6 s of rollouts, 3 s of training and a commit of 1 s."""
    seconds = {
        **{"wait_for_rollout": 6.0, "iteration": 9.0, "commit": 1.0},
        **{"rollout": 5.0, "sampling": 0.5, "reward": 0.1, "advantage": 0.1},
        **{"old_log_prob": 0.5, "train_actor": 2.0},
    }
    metrics = {f"perf/{name}_seconds": scale * value for name, value in seconds.items()}
    return {"iteration": iteration, **metrics, "perf/rollout_idle_share": 0.5, "perf/trainer_idle_share": 0.7, **more}


def time_of(config: RunConfig, *records: dict[str, Any]) -> IterationTime:
    time = iteration_time(records, load_pipeline(**config.pipeline.source()), config)
    assert time is not None
    return time


def gains(time: IterationTime, config: RunConfig) -> dict[str, Advice]:
    return {each.change.partition("=")[0]: each for each in advice(time, config)}


def test_the_first_iteration_does_not_count(tmp_path: Path) -> None:
    time = time_of(config_of(tmp_path), line(1, scale=9.0), line(2), line(3), line(4, scale=1.1))
    assert (time.num_iterations, time.rollout, time.training, time.commit) == (3, 6.0, 3.0, 1.0)
    assert time.total == pytest.approx(10.0)
    assert time.rollout_path == ["rollout", "sampling", "reward", "advantage"]
    assert time.trainer_path == ["old_log_prob", "ref_log_prob", "train_actor"]


def test_gains_follow_their_formulas(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    evaluated = {"iteration": 1, "eval/greedy_success_rate": 0.5, "perf/evaluate_greedy_seconds": 4.0}
    records = [line(1), line(2, **{"perf/train_micro_batches": 8.0, "train/optimizer_steps": 2.0}), evaluated]
    time = time_of(config, *records)
    assert time.total == pytest.approx(12.0) and time.evaluation == pytest.approx(2.0)
    found = gains(time, config)
    assert found["rollout.max_staleness"].gain == pytest.approx(12 / (12 - 4))
    assert found["rollout.num_workers"].gain == pytest.approx(12 / (12 - 5.7 / 2))
    assert found["trainer.num_ranks"].gain == pytest.approx(12 / (12 - 1.25))
    assert found["rollout.num_workers"].condition == "now 2; if 2 more cores are free"
    assert found["rollout.num_workers"].change == "rollout.num_workers=4"


def test_larger_micro_batches_are_a_bound(tmp_path: Path) -> None:
    config = config_of(tmp_path, "trainer.micro_batch_rows=8")
    several = {"perf/train_micro_batches": 8.0, "train/optimizer_steps": 2.0}
    found = gains(time_of(config, line(1, **several)), config)["trainer.micro_batch_rows"]
    assert found.change == "trainer.micro_batch_rows=16" and found.is_bound
    assert found.gain == pytest.approx(10 / (10 - 1.25)) and "4 per step" in found.condition
    one = {"perf/train_micro_batches": 2.0, "train/optimizer_steps": 2.0}
    assert "trainer.micro_batch_rows" not in gains(time_of(config, line(1, **one)), config)


def test_rollouts_ahead_save_no_more_than_the_wait(tmp_path: Path) -> None:
    ahead = ("rollout.max_staleness=1", "algorithm.old_log_probs=proximal")
    config = config_of(tmp_path, *ahead)
    found = gains(time_of(config, line(1, **{"perf/wait_for_rollout_seconds": 1.0})), config)
    assert found["rollout.num_workers"].gain == pytest.approx(10 / 9)
    assert "rollout.max_staleness" not in found and "pipeline.task_runs" not in found


def test_a_worker_for_each_group_is_the_limit(tmp_path: Path) -> None:
    config = config_of(tmp_path, "rollout.num_workers=4")
    assert "rollout.num_workers" not in gains(time_of(config, line(1)), config)


def test_what_the_job_refuses_is_not_advised(tmp_path: Path) -> None:
    """Off-policy training has one rank, and its rollouts do not run ahead."""
    words = ("experiment=pendulum", "rollout.envs_per_worker=2", f"run_root={tmp_path}", "run_id=mine")
    seconds = {"wait_for_rollout": 6.0, "iteration": 9.0, "commit": 1.0, "rollout": 6.0, "store": 0.5, "train": 2.5}
    record = {"iteration": 1, **{f"perf/{name}_seconds": value for name, value in seconds.items()}}
    config = compose_config(words)
    found = gains(time_of(config, record), config)
    assert found["rollout.num_workers"].change == "rollout.num_workers=2 rollout.envs_per_worker=1"
    assert not {"trainer.num_ranks", "rollout.max_staleness"} & set(found)


def test_the_explanation_fits_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder.create(config_of(tmp_path))
    for record in (line(1, scale=5.0), line(2), line(3)):
        folder.metrics.append(record)
    assert main(["explain", "mine", "--run-root", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mine: an iteration takes 10 s, the median of 2 iterations"
    assert lines[1].split()[:4] == ["rollout", "60%", "6", "s"] and "rollout 5, sampling 0.5" in lines[1]
    assert "Idle within the nodes' time: rollout 50% and trainer 70%." in lines
    assert "  × 1.67 rollout.max_staleness=1 algorithm.old_log_probs=proximal (if rollout" in lines
    assert max(map(len, lines)) <= 80 and len(lines) <= 16


def test_runs_that_cannot_be_explained_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder.create(config_of(tmp_path))
    assert main(["explain", "mine", "--run-root", str(tmp_path)]) == 2
    assert main(["explain", "mime", "--run-root", str(tmp_path)]) == 2
    assert main(["trace", "other", "--run-root", str(tmp_path)]) == 2
    assert main(["trace", "mine", "--run-root", str(tmp_path)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"mine: {folder.metrics.path} has no iteration with its time yet",
        f"mime: {tmp_path}/ has no such run; did you mean mine?",
        f"other: {tmp_path}/ has no such run; `embodyflow runs` lists them",
        "mine: has no trace; tracking.trace=true records one",
    ]


def test_a_trace_is_joined_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder.create(config_of(tmp_path))
    with recording(folder.trace_folder, "flow"), span("run", "run"):
        assert main(["trace", "mine", "--run-root", str(tmp_path)]) == 0  # the run is still at work
    assert capsys.readouterr().out.splitlines()[::2] == [
        "1 spans, 0.0 MB",
        f"trace={folder.trace_path}",
    ]

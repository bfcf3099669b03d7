"""``embodyflow compare``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from embodyflow.cli.comparison.compared_runs import grouped, read_runs
from embodyflow.cli.comparison.curves import curve_of
from embodyflow.cli.main import main
from embodyflow.config.composition.compose import compose_config
from embodyflow.orchestration.request.request import RunRequest
from embodyflow.record.run_folder import RunFolder

RATE = "eval/greedy_success_rate"


@pytest.fixture(autouse=True)
def quiet_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embodyflow.stack.signals.exit_on_signals", lambda: None)
    monkeypatch.setenv("COLUMNS", "80")


def make(root: Path, run_id: str, rates: Sequence[float], *overrides: str, seed: int = 0) -> RunFolder:
    request = RunRequest(run_id=run_id, seed=seed, overrides=(f"run_root={root}", *overrides))
    folder = RunFolder.create(compose_config(request.hydra_overrides()))
    for iteration, rate in enumerate(rates):
        times = {"perf/iteration_seconds": 2.0, "perf/commit_seconds": 0.5} if iteration else {}
        folder.metrics.append({"iteration": iteration, **times})
        line: dict[str, Any] = {"iteration": iteration, RATE: rate}
        limits = {"eval/greedy_success_low": rate - 0.25, "eval/greedy_success_high": rate + 0.25}
        folder.metrics.append(line | limits)
    return folder


def compare(root: Path, *words: str) -> int:
    return main(["compare", *words, "--run-root", str(root)])


def test_runs_that_differ_by_seed_are_one_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, "first", (0.25, 0.5, 0.75), seed=1)
    make(tmp_path, "second", (0.25, 0.25, 0.5), "tracking.tensorboard=false", seed=2)
    make(tmp_path, "slow", (0.25, 0.5), "trainer.learning_rate=1e-5", "rollout.group_size=4")
    picture = tmp_path / "curves.png"
    assert compare(tmp_path, "first", "slow", "second", "--picture", str(picture)) == 0
    title, header, one, other, keys, *differing, drawn = capsys.readouterr().out.splitlines()
    assert title.strip() == RATE
    assert header.split() == ["runs", "before", "after", "interval", "iterations", "seconds"]
    assert one.split("  ")[0].strip() == "A"
    assert " ".join(one.split()) == "A first second 0.25 0.625 0.5 to 0.75, 2 seeds 2 5"
    assert " ".join(other.split()) == "B slow 0.25 0.5 0.25 to 0.75 1 2.5"
    assert keys.split() == ["differs", "A", "B"]
    assert [" ".join(each.split()) for each in differing] == [
        "rollout.group_size 8 4",
        "trainer.learning_rate 0.0003 1e-05",
    ]
    assert drawn == f"picture={picture}" and picture.read_bytes().startswith(b"\x89PNG")


def test_runs_of_the_same_seed_are_no_further_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    for name, seed in (("first", 1), ("again", 1), ("other", 2)):
        make(tmp_path, name, (0.25, 0.25 * seed), seed=seed)
    assert compare(tmp_path, "first", "again") == 0
    assert "0.25 to 0.25, 2 runs of 1 seed " in " ".join(capsys.readouterr().out.split())
    assert compare(tmp_path, "first", "again", "other") == 0
    assert "0.25 to 0.5, 3 runs of 2 seeds " in " ".join(capsys.readouterr().out.split())


def test_a_run_whose_times_are_lost_has_no_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A resumed run restores damaged lines from its ledger, which holds no times."""
    make(tmp_path, "whole", (0.25, 0.5), seed=1)
    damaged = make(tmp_path, "damaged", (0.25, 0.5), "rollout.group_size=4")
    damaged.metrics.append({"iteration": 2, "weights_digest": "ab"})
    assert compare(tmp_path, "whole", "damaged") == 0
    _, _, one, other, *_ = capsys.readouterr().out.splitlines()
    assert one.split()[-1] == "2.5" and other.split()[-1] == "–"


def test_a_band_has_the_iterations_that_all_seeds_have(tmp_path: Path) -> None:
    make(tmp_path, "first", (0.25, 0.5, 0.75), seed=1)
    make(tmp_path, "second", (0.25, 0.25), seed=2)
    [group] = grouped(read_runs(tmp_path, ["first", "second"]))
    assert curve_of(group, RATE) == {0: [0.25, 0.25], 1: [0.5, 0.25]}


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, "first", (0.25, 0.5))
    make(tmp_path, "fresh", ())
    judged = make(tmp_path, "judged", (0.5,))
    judged.write_evaluation({})
    assert compare(tmp_path, "first") == 2
    assert compare(tmp_path, "first", "frist") == 2
    assert compare(tmp_path, "first", str(tmp_path / "first")) == 2
    assert compare(tmp_path, "first", "fresh") == 2
    assert compare(tmp_path, "first", "judged") == 2
    assert compare(tmp_path, "first", "fresh", "--picture", "curves.gif") == 2
    assert capsys.readouterr().err.splitlines() == [
        "RUN: must be at least 2 runs, is 1",
        f"frist: {tmp_path}/ has no such run; did you mean first?",
        f"{tmp_path / 'first'}: is named twice",
        f"fresh: {tmp_path / 'fresh' / 'metrics.jsonl'} has no metrics yet",
        "judged: is an evaluation; allowed are training runs",
        "--picture=curves.gif: allowed are files ending in .png, .svg",
    ]

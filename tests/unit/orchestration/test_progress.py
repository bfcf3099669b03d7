"""The progress of a run on the terminal."""

import io
import json
from pathlib import Path

from rich.console import Console

from embodyflow.orchestration.server.progress_bar import RunProgress
from embodyflow.process.durable_files import write_atomically


def write_status(folder: Path, stage: str, iteration: int) -> None:
    (folder / "status.json").write_text(json.dumps({"stage": stage, "iteration": iteration, "iterations": 3}))


def test_without_a_terminal_each_stage_and_iteration_is_a_line(tmp_path: Path) -> None:
    output = io.StringIO()
    metrics = tmp_path / "metrics.jsonl"
    with RunProgress(tmp_path, Console(file=output)) as progress:
        progress.update()
        write_status(tmp_path, "sft", 0)
        progress.update()
        write_status(tmp_path, "train", 1)
        metrics.write_text('{"iteration": 0, "evaluation/success": 0.5}\n{"iteration": 1, "rollout/success_r')
        progress.update()
        progress.update()
        with metrics.open("a") as file:
            file.write('ate": 0.625, "groups/mixed_fraction": 0.25, "policy/entropy": 1.23456}\n')
        progress.update()
    assert output.getvalue().splitlines() == [
        "warm start on demonstrations",
        "training",
        "iteration 1  success 0.625  mixed groups 0.25  entropy 1.23",
    ]


def test_damaged_lines_are_not_shown(tmp_path: Path) -> None:
    """The resumed run rebuilds them; until then the bar must not fail."""
    output = io.StringIO()
    metrics = tmp_path / "metrics.jsonl"
    with RunProgress(tmp_path, Console(file=output)) as progress:
        metrics.write_bytes(b'{"iter\n\xff\n[1]\n{"loss": 1}\n{"iteration": 1, "rollout/success_rate": 0.5}\n')
        progress.update()
    assert output.getvalue().splitlines() == ["iteration 1  success 0.5"]


def test_a_resumed_run_shows_new_iterations(tmp_path: Path) -> None:
    output = io.StringIO()
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"iteration": 1, "rollout/reward": 1.0}\n')
    with RunProgress(tmp_path, Console(file=output)) as progress:
        with metrics.open("a") as file:
            file.write('{"iteration": 2, "rollout/reward": 2.0}\n')
        progress.update()
    assert output.getvalue() == "iteration 2  reward 2\n"


def lines(*iterations: int) -> str:
    return "".join(json.dumps({"iteration": each, "rollout/reward": each}) + "\n" for each in iterations)


def test_replayed_iterations_are_shown_once(tmp_path: Path) -> None:
    output = io.StringIO()
    metrics = tmp_path / "metrics.jsonl"
    with RunProgress(tmp_path, Console(file=output)) as progress:
        metrics.write_text(lines(1, 2, 3))
        progress.update()
        write_atomically(metrics, lines(1, 2))
        progress.update()
        with metrics.open("a") as file:
            file.write('{"iteration": 3, "perf/seconds": 1.25, "rollout/reward": 3}\n' + lines(4))
        progress.update()
        write_atomically(metrics, lines(1, 2, 3, 4, 5))  # longer than the part that was read
        progress.update()
    assert output.getvalue().splitlines() == [f"iteration {n}  reward {n}" for n in (1, 2, 3, 4, 5)]


def test_a_resumed_run_shows_replayed_iterations(tmp_path: Path) -> None:
    """The run was killed between the line of its iteration 2 and the commit."""
    output = io.StringIO()
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(lines(1, 2))
    (tmp_path / "checkpoints" / "iteration-000001").mkdir(parents=True)
    with RunProgress(tmp_path, Console(file=output)) as progress:
        progress.update()
        write_atomically(metrics, lines(1))
        progress.update()
        with metrics.open("a") as file:
            file.write(lines(2))
        progress.update()
    assert output.getvalue() == "iteration 2  reward 2\n"


def test_on_a_terminal_the_bar_shows_the_metrics(tmp_path: Path) -> None:
    output = io.StringIO()
    with RunProgress(tmp_path, Console(file=output, force_terminal=True, color_system=None, width=120)) as progress:
        write_status(tmp_path, "train", 2)
        (tmp_path / "metrics.jsonl").write_text('{"iteration": 2, "rollout/success_rate": 0.75}\n')
        progress.update()
    shown = output.getvalue()
    assert "training" in shown
    assert "2/3" in shown
    assert "success 0.75" in shown

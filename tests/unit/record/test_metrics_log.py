"""Metrics that were edited or cut are noticed against the ledger and rebuilt from it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embodyflow.cli.main import main
from embodyflow.errors import DamageError
from embodyflow.record.ledger import Ledger
from embodyflow.record.metrics_log import MetricsLog, lasting_metrics
from embodyflow.record.run_folder import RunFolder

Lines = list[dict[str, Any]]


def commit(iteration: int) -> dict[str, Any]:
    own = {"iteration": iteration, "weights_digest": f"{iteration}" * 64, "digests": {"rollout": ["d"]}}
    return {**own, "loss": 1 / (iteration + 3), "ratio": float("nan"), "perf/seconds": 0.1 * iteration}


def evaluation(iteration: int) -> dict[str, Any]:
    return {"iteration": iteration, "eval/greedy_success_rate": 0.1 * iteration, "perf/eval_seconds": 2.0}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """The folder of a run with three iterations, evaluations before the first and after the second, and a warm start.

    The ledger of iteration 3 is that of an earlier version, without metrics.
    """
    folder, ledger = RunFolder(tmp_path / "mine"), Ledger(tmp_path / "mine" / "ledger.jsonl")
    folder.path.mkdir()

    def evaluate(iteration: int) -> None:
        folder.metrics.append(evaluation(iteration))
        metrics = {"eval/greedy_success_rate": 0.1 * iteration}
        ledger.append("evaluation", iteration, {"weights_digest": f"{iteration}" * 64, "metrics": metrics})

    folder.metrics.append({"iteration": 0, "sft/reached": 1.0})
    for iteration in range(4):
        line = commit(iteration)
        facts: dict[str, Any] = {name: line.pop(name) for name in ("weights_digest", "digests")}
        if iteration > 0:
            folder.metrics.append(commit(iteration))
        if iteration in (1, 2):
            facts["metrics"] = {name: value for name, value in lasting_metrics(line).items() if name != "iteration"}
        (folder.checkpoints.begin(iteration) / "weights").write_text("")
        folder.checkpoints.commit(iteration, {}, keep=3)
        ledger.append("commit", iteration, facts)
        if iteration in (0, 2):
            evaluate(iteration)
    return folder


def text(lines: Lines) -> list[str]:
    """Return lines as text, in which NaN equals NaN."""
    return [json.dumps(line) for line in lines]


WHOLE = [
    {"iteration": 0, "sft/reached": 1.0},
    evaluation(0),
    commit(1),
    commit(2),
    evaluation(2),
    commit(3),
]


def restore(run: RunFolder, last: int = 3) -> list[int]:
    return run.metrics.restore(last, Ledger(run.ledger_path))


def test_right_lines_stay_and_those_of_later_iterations_go(run: RunFolder) -> None:
    assert restore(run) == [] and text(run.metrics.read()) == text(WHOLE)
    assert restore(run, last=1) == [] and text(run.metrics.read()) == text(WHOLE[:3])


def edit(name: str, value: object, line: int) -> Callable[[Lines], Lines]:
    return lambda lines: [{**each, name: value} if index == line else each for index, each in enumerate(lines)]


def without(name: str, line: int) -> Callable[[Lines], Lines]:
    def change(lines: Lines) -> Lines:
        lines[line].pop(name)
        return lines

    return change


@pytest.mark.parametrize(
    ("change", "differing"),
    [
        (lambda lines: [], [0, 1, 2]),
        (lambda lines: lines[:3], [2]),
        (lambda lines: lines[3:], [0, 1]),
        (lambda lines: [*lines, lines[2]], [1]),
        (lambda lines: [*lines, evaluation(2)], [2]),
        (edit("loss", 0.0, 2), [1]),
        (edit("loss", 0.25000000000000006, 2), [1]),
        (edit("weights_digest", "", 3), [2]),
        (edit("added", 1.0, 3), [2]),
        (edit("eval/greedy_success_rate", 1.0, 4), [2]),
        (edit("iteration", 1, 3), [1, 2]),
        (edit("iteration", 9, 3), [2]),
        (without("loss", 2), [1]),
        (without("weights_digest", 2), [1]),
        (without("eval/greedy_success_rate", 4), [2]),
        (without("iteration", 2), [1]),
    ],
)
def test_a_changed_file_is_rebuilt(run: RunFolder, change: Callable[[Lines], Lines], differing: list[int]) -> None:
    lines = change(run.metrics.read())
    run.metrics.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert restore(run) == differing
    rebuilt = [lasting_metrics(line) for line in run.metrics.read() if "sft/reached" not in line]
    expected = [lasting_metrics(line) for line in WHOLE[1:]]
    if not any(line["iteration"] == 3 for line in lines if "iteration" in line):
        expected.pop()  # the ledger does not hold it
    assert text(rebuilt) == text(expected)
    assert restore(run) == []


def test_damaged_lines_and_a_missing_file_are_rebuilt(run: RunFolder) -> None:
    content = run.metrics.path.read_bytes()
    run.metrics.path.write_bytes(content.replace(b'{"iteration": 1,', b'"iteration": 1,').replace(b"sft", b"\xff"))
    assert restore(run) == [1]
    run.metrics.path.unlink()
    assert restore(run) == [0, 1, 2]


def test_an_evaluation_of_other_weights_is_not_restored(run: RunFolder) -> None:
    """Iteration 2 was repeated with another learning rate, and its evaluation is missing."""
    Ledger(run.ledger_path).append("commit", 2, {"weights_digest": "other", "digests": {}, "metrics": {"loss": 2.0}})
    assert restore(run, last=1) == []
    run.metrics.append({"iteration": 2, "weights_digest": "other", "digests": {}, "loss": 2.0})
    assert restore(run, last=2) == []
    assert run.metrics.evaluation(2) is None and run.metrics.evaluation(0) == evaluation(0)


def test_the_ledger_command_names_changed_metrics(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", str(run.path)]) == 0
    assert "evaluated" in capsys.readouterr().out
    MetricsLog(run.metrics.path).append(commit(1))
    assert main(["ledger", str(run.path)]) == 1
    expected = f"{run.metrics.path}: lines of iterations 1 differ from the ledger; resume=mine rebuilds them\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize("name", ["eval/greedy_success_rate", "eval/return"])
def test_an_evaluation_is_known_by_its_metrics(tmp_path: Path, name: str) -> None:
    log, line = MetricsLog(tmp_path / "metrics.jsonl"), {"iteration": 2, name: 0.5}
    log.append(commit(2))
    assert log.evaluation(2) is None
    log.append(line)
    assert log.evaluation(2) == line and log.evaluation(1) is None


@pytest.mark.parametrize("block", [1, 50, 10**6])
@pytest.mark.parametrize("number", [1, 3, 10, 99])
def test_the_newest_lines_are_the_last_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, number: int
) -> None:
    monkeypatch.setattr("embodyflow.record.metrics_log._BLOCK", block)
    log = MetricsLog(tmp_path / "metrics.jsonl")
    assert log.newest(number) == []
    for iteration in range(10):
        log.append({"iteration": iteration, "text": "ä" * iteration})
    with log.path.open("a") as file:
        file.write('{"iteration": 10')  # a killed process left it half written
    assert log.newest(number) == log.read()[-number:]


@pytest.mark.parametrize("line", ["{", "[]", "{}", "\x00x"])
def test_a_damaged_line_is_named(line: str, tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append({"iteration": 1})
    log.path.write_text(f'{log.path.read_text()}{line}\n{{"iteration": 3}}\n')
    with pytest.raises(DamageError, match=rf"metrics\.jsonl: line 2 is damaged; resume={tmp_path.name} rebuilds it"):
        log.read()

"""The progress of a run on the terminal."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from embodyflow.config.language import LanguageConfig
from embodyflow.config.robots.control import ControlConfig
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.orchestration.display import progress_bar
from embodyflow.orchestration.display.progress_bar import RunProgress
from embodyflow.process.files.durable_files import write_atomically
from embodyflow.record.progress_line import progress_line, short_number

HEADLINE = EmbodiedConfig.headline
TRAINED = {
    "iteration": 12,
    "rollout/success_rate": 0.8125,
    "rollout/reward": 341.25,
    "groups/mixed_fraction": 0.4375,
    "policy/entropy": 1.23456,
}


def progress_in(folder: Path, console: Console, iterations: int = 3) -> RunProgress:
    return RunProgress(folder, console, HEADLINE, iterations)


def write_status(folder: Path, stage: str, iteration: int) -> None:
    (folder / "status.json").write_text(json.dumps({"stage": stage, "iteration": iteration, "iterations": 3}))


def returns(*iterations: int) -> str:
    return "".join(json.dumps({"iteration": each, "rollout/reward": each}) + "\n" for each in iterations)


def shown_returns(*iterations: int) -> list[str]:
    return [f"iteration   {n}/3  return    {n}.000" for n in iterations]


def test_a_line_names_at_most_three_numbers_and_fits_a_narrow_terminal() -> None:
    line = progress_line(TRAINED, HEADLINE, 80)
    assert str(line) == "iteration   12/80  success   0.812  return    341.2  mixed     0.438"
    long = progress_line({**TRAINED, "iteration": 1234, "rollout/reward": -0.00012345}, HEADLINE, 10000)
    assert str(long) == "iteration    1234/10000  success   0.812  return   -1e-04  mixed     0.438"
    assert len(str(long)) <= 80


def test_the_reward_of_an_environment_is_called_return_and_that_of_a_response_reward() -> None:
    record = {"iteration": 1, "rollout/success_rate": 0.5, "rollout/reward": 2.0, "policy/entropy": 1.5}
    assert progress_line(record, LanguageConfig.headline, 9).numbers == (("success", "0.500"), ("reward", "2.000"))
    assert progress_line(record, EmbodiedConfig.headline, 9).numbers == (("success", "0.500"), ("return", "2.000"))
    returned = (("return", "2.000"), ("entropy", "1.500"))
    assert progress_line(record, ControlConfig.headline, 9).numbers == (("success", "0.500"), *returned)
    del record["rollout/success_rate"]  # few environments of control jobs report it
    assert progress_line(record, ControlConfig.headline, 9).numbers == returned


@given(st.floats(-1e12, 1e12, allow_nan=False))
def test_a_number_is_short_and_near(value: float) -> None:
    text = short_number(value)
    assert len(text) <= 7
    assert float(text) == pytest.approx(value, rel=0.5 if "e" in text else 1e-3, abs=5e-4)


def test_without_a_terminal_each_stage_and_each_line_is_plain(tmp_path: Path) -> None:
    output = io.StringIO()
    metrics = tmp_path / "metrics.jsonl"
    with progress_in(tmp_path, Console(file=output)) as progress:
        progress.update()
        write_status(tmp_path, "sft", 0)
        progress.update()
        metrics.write_text('{"iteration": 0, "sft/reached": 1.0, "sft/success_rate": 0.5, "sft/steps": 60}\n')
        progress.update()
        write_status(tmp_path, "train", 1)
        with metrics.open("a") as file:
            file.write('{"iteration": 0, "eval/greedy_success_rate": 0.5, "eval/sampled_success_rate": 0.25}\n')
            file.write('{"iteration": 1, "rollout/success_r')
            file.flush()
            progress.update()
            progress.update()
            file.write('ate": 0.625, "groups/mixed_fraction": 0.25, "policy/entropy": 1.23456}\n')
        progress.update()
    assert output.getvalue().splitlines() == [
        "warm start",
        "warm start  0/3  success   0.500  steps        60",
        "training",
        "evaluated   0/3  greedy    0.500  sampled   0.250",
        "iteration   1/3  success   0.625  mixed     0.250",
    ]


def test_alarms_are_shown_below_their_iteration(tmp_path: Path) -> None:
    output = io.StringIO()
    with progress_in(tmp_path, Console(file=output)) as progress:
        record = {"iteration": 2, "rollout/reward": 2, "health/kl_runaway": 0.83, "perf/health/throughput_drop": 6.1}
        (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
        progress.update()
        progress.update()
    shown = [" ".join(line.split()) for line in output.getvalue().splitlines()]
    assert shown[-2:] == ["iteration 2/3 return 2.000", "alarm 2/3 kl_runaway 0.830 throughput_drop 6.100"]


def test_damaged_lines_are_not_shown(tmp_path: Path) -> None:
    """The resumed run rebuilds them; until then the bar must not fail."""
    output = io.StringIO()
    metrics = tmp_path / "metrics.jsonl"
    with progress_in(tmp_path, Console(file=output)) as progress:
        metrics.write_bytes(b'{"iter\n\xff\n[1]\n{"loss": 1}\n' + returns(1).encode())
        progress.update()
    assert output.getvalue().splitlines() == shown_returns(1)


def test_a_resumed_run_shows_new_iterations(tmp_path: Path) -> None:
    output = io.StringIO()
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(returns(1))
    with progress_in(tmp_path, Console(file=output)) as progress:
        with metrics.open("a") as file:
            file.write(returns(2))
        progress.update()
    assert output.getvalue().splitlines() == shown_returns(2)


def test_replayed_iterations_are_shown_once(tmp_path: Path) -> None:
    output = io.StringIO()
    metrics = tmp_path / "metrics.jsonl"
    with progress_in(tmp_path, Console(file=output)) as progress:
        metrics.write_text(returns(1, 2, 3))
        progress.update()
        write_atomically(metrics, returns(1, 2))
        progress.update()
        with metrics.open("a") as file:
            file.write('{"iteration": 3, "perf/seconds": 1.25, "rollout/reward": 3}\n' + returns(4))
        progress.update()
        write_atomically(metrics, returns(1, 2, 3, 4, 5))  # longer than the part that was read
        progress.update()
    assert output.getvalue().splitlines() == shown_returns(1, 2, 3, 4, 5)


def test_a_resumed_run_shows_replayed_iterations_and_no_earlier_evaluation(tmp_path: Path) -> None:
    """The run was killed between the line of its iteration 2 and the commit."""
    output = io.StringIO()
    metrics = tmp_path / "metrics.jsonl"
    evaluated = '{"iteration": 1, "eval/greedy_success_rate": 0.5}\n'
    metrics.write_text(returns(1) + evaluated + returns(2))
    (tmp_path / "checkpoints" / "iteration-000001").mkdir(parents=True)
    with progress_in(tmp_path, Console(file=output)) as progress:
        progress.update()
        write_atomically(metrics, returns(1) + evaluated)
        progress.update()
        with metrics.open("a") as file:
            file.write(returns(2) + evaluated.replace("1", "2", 1))
        progress.update()
    assert output.getvalue().splitlines() == [*shown_returns(2), "evaluated   2/3  greedy    0.500"]


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


def draw(folder: Path, monkeypatch: pytest.MonkeyPatch, width: int, iterations: int, **console: Any) -> str:
    """Return what a terminal receives in iterations of 3 s until iteration 12 of many."""
    clock, output = Clock(), io.StringIO()
    monkeypatch.setattr(progress_bar, "time", clock)
    metrics = folder / "metrics.jsonl"
    with progress_in(folder, Console(file=output, force_terminal=True, width=width, **console), iterations) as progress:
        write_status(folder, "train", 12)
        for iteration in (10, 11, 12):
            clock.now += 3.0
            with metrics.open("a") as file:
                file.write(json.dumps({**TRAINED, "iteration": iteration}) + "\n")
            progress.update()
    return output.getvalue()


def lines_of(drawn: str) -> list[str]:
    """Return the lines that were drawn, without control codes."""
    return [line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)) if line.strip()]


@pytest.mark.parametrize("iterations", [80, 10000])
@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_a_bar_stays_on_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int, iterations: int) -> None:
    drawn = lines_of(draw(tmp_path, monkeypatch, width, iterations, color_system=None))
    bars = [line for line in drawn if line.startswith("training")]
    assert all(len(line.rstrip()) <= width for line in bars)
    if width >= 80:
        assert [line for line in drawn if line.startswith("iteration")][-1].startswith("iteration ")
        assert f"12/{iterations}" in bars[-1]
        assert ("3 min left" if iterations == 80 else "8.3 h left") in bars[-1]
        assert "success 0.812  return 341.2" in bars[-1]
    if width >= 80 and iterations == 80:
        assert "mixed 0.438" in bars[-1]


def test_lines_of_iterations_stay_above_the_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = lines_of(draw(tmp_path, monkeypatch, 80, 80, color_system=None))
    kept = [line.rstrip() for line in drawn if line.startswith("iteration")]
    assert kept == [f"iteration   {n}/80  success   0.812  return    341.2  mixed     0.438" for n in (10, 11, 12)]


def test_colours_are_left_out_where_they_are_not_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    color = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
    assert color.search(draw(tmp_path, monkeypatch, 80, 80, color_system="standard"))
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / "metrics.jsonl").unlink()
    assert not color.search(draw(tmp_path, monkeypatch, 80, 80, color_system="standard"))


def test_a_terminal_without_control_codes_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in draw(tmp_path, monkeypatch, 80, 80)

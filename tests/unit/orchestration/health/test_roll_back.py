"""A run that rolls back goes on from an earlier commit with changed keys, and does so again wherever it is killed."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counting_run import begin, iterate, leave_flows, run_in

from embodyflow.config import RunConfig
from embodyflow.config.changed_values import value_of, with_values
from embodyflow.errors import HealthError
from embodyflow.health.examination import Alarm
from embodyflow.health.history import Finding, History
from embodyflow.orchestration.health import alarms, question, reporting, roll_back
from embodyflow.orchestration.health.roll_back import changed_values, with_roll_backs
from embodyflow.orchestration.run import recovery, training
from embodyflow.record.ledger import Ledger
from embodyflow.record.run_folder import RunFolder

ITERATIONS = 6
Outcome = tuple[dict[str, Any], str, str, list[Any]]


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


def lossy(history: History, config: Any) -> Finding | None:
    """Find every iteration from the fourth on whose weights were trained at the first learning rate or its half."""
    iteration = history.iterations[-1]["iteration"]
    found = iteration in config.settings.values() and history.newest("rate") not in (None, 0.25)
    return Finding("rate", float(history.newest("rate") or 0), 0.25, "the rate is too high") if found else None


@pytest.fixture(autouse=True)
def outside_of_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_flows(monkeypatch)
    for module in (alarms, roll_back, question):
        monkeypatch.setattr(module, "get_run_logger", lambda: logging.getLogger("run"))
    monkeypatch.setattr(reporting, "report_alarm", lambda run, alarm: reports.append(str(alarm)))
    monkeypatch.setattr(training, "log_progress", lambda *_: None)
    monkeypatch.setattr(training, "report_start", lambda run: None)
    monkeypatch.setattr(training, "_export", finish)
    reports.clear()


reports: list[str] = []


async def finish(run: Any, lookahead: Any) -> None:
    await training._run_until(run, lookahead, run.config.iterations)


LOSSY = (
    *("health.own.lossy.function=test_roll_back:lossy", "health.own.lossy.action=roll_back"),
    *("health.own.lossy.settings={a:4,b:5}", "health.own.lossy.changes={trainer.learning_rate:0.5}"),
)


PAUSE = (
    "health.own.lossy.function=test_roll_back:lossy",
    "health.own.lossy.action=pause",
    "health.own.lossy.settings={a:4}",
)


def config_of(
    tiny_config: Callable[..., RunConfig], root: Path, run_id: str, *words: str, own: tuple[str, ...] = LOSSY
) -> RunConfig:
    sizes = (f"iterations={ITERATIONS}", "trainer.keep_checkpoints=2", "evaluation.video=false", "evaluation.every=3")
    names = (f"run_root={root}", f"run_id={run_id}", "trainer.learning_rate=1.0")
    return tiny_config(*names, *sizes, *own, "health.roll_back.iterations=2", *words)


async def to_the_end(folder: RunFolder, config: RunConfig, at: Callable[[Any, int], None]) -> Any:
    """Run and roll back until the end, as :func:`embodyflow.orchestration.run.training._train_to_the_end` does."""
    while True:
        changed = with_roll_backs(config, Ledger(folder.ledger_path))
        run = run_in(folder, changed)
        if folder.checkpoints.committed():
            last = await recovery.restore(run)
        else:
            await begin(run)
            last = 0
        run.at = at
        alarm = await training._run_iterations(run, last)
        if alarm is None:
            await run.stages.drain()
            return run
        await roll_back.roll_back(run, alarm)


async def train(run: Any, index: int) -> dict[str, float]:
    """Run an iteration whose rows and metrics depend on the learning rate."""
    run.at(run, index)
    run.session.state["rate"] = rate = run.config.trainer.learning_rate
    await iterate(run, index, {"rate": rate, "loss": 1 / index})
    return {"rate": rate, "loss": 1 / index}


def outcome_of(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, at: Callable[[Any, int], None] = lambda run, index: None
) -> Outcome:
    monkeypatch.setattr(training, "run_iteration", train)
    folder = RunFolder(config.run_dir) if config.run_dir.exists() else RunFolder.create(config)
    run = asyncio.run(to_the_end(folder, config, at))
    lines = [(line["iteration"], line.get("rate")) for line in folder.metrics.read()]
    return run.session.state, run.session.weights_digest, run.stages.ledger.digest(), lines


def test_a_run_rolls_back_twice_and_reaches_the_end(
    tiny_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tiny_config, tmp_path, "mine")
    state, _, _, lines = outcome_of(config, monkeypatch)
    assert state["updates"] == ITERATIONS
    assert [each for each in lines if each[1]] == [(index, 0.25) for index in range(1, 7)]
    found = [(each.iteration, each.facts["to"], each.facts["values"]) for each in _roll_backs(config)]
    assert found == [(4, 2, {"trainer.learning_rate": 0.5}), (4, 0, {"trainer.learning_rate": 0.25})]
    assert reports == ["health.lossy: in iteration 4 the rate is too high"] * 2


def test_a_finding_that_comes_again_is_waited_out(
    tiny_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[tuple[int, float]] = []

    def at(run: Any, index: int) -> None:
        played.append((index, run.config.trainer.learning_rate))

    outcome_of(config_of(tiny_config, tmp_path, "mine"), monkeypatch, at)
    again = [index for index, rate in played if rate == 0.5]
    assert [index for index, rate in played if rate == 1.0] == [1, 2, 3, 4], "the first roll-back is done at once"
    assert again == [3, 4, 5, 6], "the second one two iterations after the finding in iteration 4"


def test_a_finding_may_ask_for_a_smaller_rate_than_its_detector(
    tiny_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = config_of(tiny_config, tmp_path, "mine")

    def changed(rate_factor: float | None) -> dict[str, float]:
        finding = Finding("policy/old_kl", 1.0, 0.1, "", rate_factor=rate_factor)
        return changed_values(config, Alarm("lossy", "roll_back", 4, finding))

    assert [changed(factor)["trainer.learning_rate"] for factor in (None, 0.9, 0.03)] == [0.5, 0.5, 0.03]


def _roll_backs(config: RunConfig) -> list[Any]:
    return Ledger(RunFolder(config.run_dir).ledger_path).roll_backs()


@pytest.mark.parametrize(
    "place", ["before the line", "after the line", "before the commit is there again", "later", "while it waits"]
)
def test_a_killed_roll_back_is_finished_by_the_next_process(
    tiny_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    straight = outcome_of(config_of(tiny_config, tmp_path, "straight"), monkeypatch)
    config = config_of(tiny_config, tmp_path, "killed")
    with monkeypatch.context() as patch:
        _kill_at(place, patch)
        with pytest.raises(Killed):
            outcome_of(config, patch, _kill_when(place))
    assert outcome_of(config, monkeypatch) == straight
    assert reports == ["health.lossy: in iteration 4 the rate is too high"] * 4


def _kill_when(place: str) -> Callable[[Any, int], None]:
    def at(run: Any, index: int) -> None:
        if index == {"later": 4, "while it waits": 6}.get(place) and run.config.trainer.learning_rate == 0.5:
            raise Killed

    return at


def _kill_at(place: str, patch: pytest.MonkeyPatch) -> None:
    record = Ledger.append

    def append(ledger: Ledger, kind: str, iteration: int, facts: dict[str, Any]) -> None:
        if kind == "roll_back" and place == "before the line":
            raise Killed
        if ledger.roll_backs() and place == "before the commit is there again":
            raise Killed
        record(ledger, kind, iteration, facts)
        if kind == "roll_back" and place == "after the line":
            raise Killed

    patch.setattr(Ledger, "append", append)


def test_a_run_that_no_roll_back_helps_ends(
    tiny_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tiny_config, tmp_path, "mine", "health.roll_back.max_times=1")
    with pytest.raises(HealthError, match=r"health\.lossy: .*max_times=1 roll-backs did not help"):
        outcome_of(config, monkeypatch)
    with pytest.raises(HealthError, match="did not help"):
        outcome_of(config, monkeypatch)
    assert len(_roll_backs(config)) == 1 and len(reports) == 2, "the alarm is reported once per timeline"


def nan_at(index: int) -> Callable[[Any, int], None]:
    def at(run: Any, now: int) -> None:
        if now == index and run.config.trainer.learning_rate == 1.0:
            raise ExceptionGroup("nodes", [FloatingPointError("the gradient norm is nan: skipped the optimizer step")])

    return at


def test_nan_rolls_back_or_ends_the_run(
    tiny_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tiny_config, tmp_path, "back", "health.nan.action=roll_back", own=())
    _, _, _, lines = outcome_of(config, monkeypatch, nan_at(5))
    assert [each for each in lines if each[1]] == [*((index, 1.0) for index in (1, 2, 3)), (4, 0.5), (5, 0.5), (6, 0.5)]
    ended = config_of(tiny_config, tmp_path, "end", own=())
    for _ in range(2):  # a resumed run repeats it
        with pytest.raises(HealthError, match=r"health\.nan: in iteration 5 the gradient norm is nan"):
            outcome_of(ended, monkeypatch, nan_at(5))
    off = config_of(tiny_config, tmp_path, "off", "health.nan.action=null", own=())
    with pytest.raises(ExceptionGroup, match="nodes"):
        outcome_of(off, monkeypatch, nan_at(5))


@pytest.mark.parametrize("answer", ["go_on", "roll_back", "cancel"])
def test_a_paused_run_asks_once_and_does_what_is_answered(
    tiny_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    asked: list[int] = []

    async def ask(run: Any, alarm: Any) -> str:
        asked.append(alarm.iteration)
        if len(asked) == 1:
            raise Killed
        return answer

    monkeypatch.setattr(alarms.question, "ask", ask)
    config = config_of(tiny_config, tmp_path, "mine", own=PAUSE)
    with pytest.raises(Killed):
        outcome_of(config, monkeypatch)
    if answer == "cancel":
        for _ in range(2):
            with pytest.raises(HealthError, match="the rate is too high"):
                outcome_of(config, monkeypatch)
        assert asked == [4, 4]
        return
    _, _, _, lines = outcome_of(config, monkeypatch)
    rates = {"go_on": [1.0] * 6, "roll_back": [0.25] * 6}[answer]
    assert [each[1] for each in lines if each[1]] == rates
    assert asked == ([4, 4] if answer == "go_on" else [4, 4, 4])


def test_checkpoints_are_kept_for_a_roll_back(tiny_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    assert config_of(tiny_config, tmp_path, "mine").kept_checkpoints == 2 + 2 * 3, "three roll-backs, each further back"
    assert config_of(tiny_config, tmp_path, "mine", own=()).kept_checkpoints == 2


def test_values_are_changed_by_key(tiny_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    config = config_of(tiny_config, tmp_path, "mine")
    other = with_values(config, {"algorithm.kl.target": 0.5, "trainer.learning_rate": 2.0})
    assert value_of(other, "algorithm.kl.target") == 0.5 and value_of(other, "trainer.learning_rate") == 2.0
    assert value_of(config, "algorithm.kl.target") is None and other.trainer.epochs == config.trainer.epochs

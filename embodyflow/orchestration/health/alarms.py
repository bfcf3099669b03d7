"""Alarms of a run: found with the metrics of an iteration, acted on once it is committed."""

from collections.abc import Mapping
from typing import Any

from prefect.logging import get_run_logger

from embodyflow.errors import HealthError
from embodyflow.health.examination import NAN, Alarm, examine, reads_history, strongest, watches
from embodyflow.health.history import Finding, is_evaluation
from embodyflow.health.roll_back_plan import due
from embodyflow.orchestration.health import question, reporting
from embodyflow.orchestration.health.roll_back import RollBackNeeded, roll_backs_of
from embodyflow.orchestration.run.iterations.nodes import Run
from embodyflow.orchestration.run.recovery import leaves
from embodyflow.record.ledger import Ledger


def alarm_metrics(run: Run, index: int, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that show an iteration's alarms, from its other metrics and those of earlier iterations."""
    return {alarm.metric: alarm.finding.value for alarm in _found(run, index, metrics)}


async def act_on_alarms(run: Run, index: int, metrics: Mapping[str, float] | None = None) -> None:
    """Do what the alarms of a committed iteration ask for; nothing that an earlier process has done.

    Args:
        run: The run.
        index: Index of the iteration.
        metrics: Its metrics; ``None`` reads them from ``metrics.jsonl``.

    Raises:
        HealthError: An alarm, or the answer to one, ends the run.
        RollBackNeeded: An alarm, or the answer to one, asks for a roll-back.
    """
    recorded = recorded_alarms(run.stages.ledger, index).get(index, [])
    known = {alarm.detector for alarm in recorded}
    found = [alarm for alarm in _found(run, index, metrics) if alarm.detector not in known]
    for alarm in found:
        await _record(run, alarm)
    if (acted_on := strongest([*recorded, *found])) is not None:
        await _act(run, acted_on)
    _roll_back_if_due(run, index)


async def act_on_failure(run: Run, index: int, error: Exception) -> None:
    """Do what ``health.nan`` asks for if an iteration failed because a number was NaN or inf; else do nothing.

    Raises:
        HealthError: The run ends.
        RollBackNeeded: The run rolls back.
    """
    causes = [each for each in leaves(error) if isinstance(each, FloatingPointError)]
    action = run.config.health.nan.action
    if not causes or action is None:
        return
    alarm = Alarm(NAN, action, index, Finding("", float("nan"), 0.0, str(causes[0])))
    if run.stages.ledger.newest("alarm", index, NAN) is None:
        await _record(run, alarm)
    if action == "roll_back":  # nothing can wait: the iteration has no result
        raise RollBackNeeded(alarm)
    raise HealthError(_end_by(alarm)) from error


def recorded_alarms(ledger: Ledger, last: int) -> dict[int, list[Alarm]]:
    """Return the alarms of a run up to an iteration, by iteration in order."""
    found = ledger.alarms(last)
    return {index: [Alarm.of_facts(index, each) for each in facts] for index, facts in found.items()}


def _found(run: Run, index: int, metrics: Mapping[str, float] | None) -> list[Alarm]:
    health = run.config.health
    if index == 0 or not watches(health):
        return []
    line: dict[str, Any] = {"iteration": index, "weights_digest": "", **(metrics or {})}
    if metrics is not None and not reads_history(health):
        return examine(health, [line], index)
    records = [each for each in run.folder.metrics.read() if _is_known(each, index, metrics)]
    if run.config.has_evaluations_beside:  # timing decides which of them have ended
        records = [each for each in records if not is_evaluation(each)]
    earlier = roll_backs_of(run.stages.ledger)
    return examine(health, records if metrics is None else [*records, line], index, earlier)


def _is_known(record: Mapping[str, Any], index: int, metrics: Mapping[str, float] | None) -> bool:
    """Return True unless the line is the examined iteration's and its metrics are given beside the file."""
    return metrics is None or "weights_digest" not in record or bool(record["iteration"] < index)


async def _record(run: Run, alarm: Alarm) -> None:
    # Reported first: a process that is killed between the two reports it twice rather than never.
    reporting.report_alarm(run, alarm)
    await run.stages.record("alarm", alarm.iteration, alarm.facts())


async def _act(run: Run, alarm: Alarm) -> None:
    """Do what an alarm asks for, except the roll-back that its action names, which may have to wait."""
    action = await _answer(run, alarm) if alarm.action == "pause" else alarm.action
    if action == "cancel":
        raise HealthError(_end_by(alarm))
    if action == "roll_back" and alarm.action == "pause":
        raise RollBackNeeded(alarm)


def _roll_back_if_due(run: Run, index: int) -> None:
    """Begin the roll-back that the earliest alarm without one asks for, unless it is to wait."""
    decided = (strongest(alarms) for alarms in recorded_alarms(run.stages.ledger, index).values())
    alarm = next((each for each in decided if each is not None and each.action == "roll_back"), None)
    if alarm is None:
        return
    iterations, last = run.config.health.roll_back.iterations, run.config.iterations
    at = min(due(alarm.iteration, iterations, roll_backs_of(run.stages.ledger)), last)
    if index >= at:
        raise RollBackNeeded(alarm)
    if index == alarm.iteration:
        get_run_logger().warning("%s soon after a roll-back: the run rolls back after iteration %d", alarm, at)


def _end_by(alarm: Alarm) -> str:
    return f"{alarm}; health.{alarm.detector}.action={alarm.action} ends the run"


async def _answer(run: Run, alarm: Alarm) -> str:
    """Return the answer that an earlier process recorded, or ask for one and record it."""
    known = run.stages.ledger.newest("answer", alarm.iteration, alarm.detector)
    if known is not None:
        return str(known["answer"])
    await run.stages.drain()  # the commit is on disk while the run waits, however long
    answer = await question.ask(run, alarm)
    await run.stages.record("answer", alarm.iteration, {"detector": alarm.detector, "answer": answer})
    return answer

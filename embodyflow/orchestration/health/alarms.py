"""Alarms of a run: found with the metrics of an iteration, acted on once it is committed."""

from collections.abc import Mapping
from typing import Any

from embodyflow.errors import HealthError
from embodyflow.health.examination import NAN, Alarm, examine, reads_history, strongest, watches
from embodyflow.health.history import Finding, is_evaluation
from embodyflow.orchestration.health import question, reporting
from embodyflow.orchestration.health.roll_back import RollBackNeeded
from embodyflow.orchestration.run.iterations.nodes import Run
from embodyflow.orchestration.run.recovery import leaves


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
    recorded = [Alarm.of_facts(index, facts) for facts in run.stages.ledger.alarms(index)]
    known = {alarm.detector for alarm in recorded}
    found = [alarm for alarm in _found(run, index, metrics) if alarm.detector not in known]
    for alarm in found:
        await _record(run, alarm)
    if (acted_on := strongest([*recorded, *found])) is not None:
        await _act(run, acted_on)


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
    try:
        await _act(run, alarm)
    except HealthError as end:
        raise end from error


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
    return examine(health, records if metrics is None else [*records, line], index)


def _is_known(record: Mapping[str, Any], index: int, metrics: Mapping[str, float] | None) -> bool:
    """Return True unless the line is the examined iteration's and its metrics are given beside the file."""
    return metrics is None or "weights_digest" not in record or bool(record["iteration"] < index)


async def _record(run: Run, alarm: Alarm) -> None:
    # Reported first: a process that is killed between the two reports it twice rather than never.
    reporting.report_alarm(run, alarm)
    await run.stages.record("alarm", alarm.iteration, alarm.facts())


async def _act(run: Run, alarm: Alarm) -> None:
    action = await _answer(run, alarm) if alarm.action == "pause" else alarm.action
    if action == "cancel":
        raise HealthError(f"{alarm}; health.{alarm.detector}.action={alarm.action} ends the run")
    if action == "roll_back":
        raise RollBackNeeded(alarm)


async def _answer(run: Run, alarm: Alarm) -> str:
    """Return the answer that an earlier process recorded, or ask for one and record it."""
    known = run.stages.ledger.newest("answer", alarm.iteration, alarm.detector)
    if known is not None:
        return str(known["answer"])
    await run.stages.drain()  # the commit is on disk while the run waits, however long
    answer = await question.ask(run, alarm)
    await run.stages.record("answer", alarm.iteration, {"detector": alarm.detector, "answer": answer})
    return answer

"""Reports of alarms: a line in the log of the flow run, and an event that Prefect's automations act on."""

import math
from typing import Any

from prefect import runtime
from prefect.events import emit_event
from prefect.logging import get_run_logger

from embodyflow.health.examination import Alarm
from embodyflow.orchestration.run.iterations.nodes import Run
from embodyflow.orchestration.server.settings import HEALTH_EVENT


def report_alarm(run: Run, alarm: Alarm) -> None:
    """Log an alarm and emit its event, with the finding's facts."""
    get_run_logger().warning("%s (%s)", alarm, alarm.action)
    flow_run, name = f"prefect.flow-run.{runtime.flow_run.id}", str(run.config.run_id)
    emit_event(
        event=f"{HEALTH_EVENT}.{alarm.detector}",
        resource={"prefect.resource.id": f"embodyflow.run.{name}", "prefect.resource.name": name},
        related=[{"prefect.resource.id": flow_run, "prefect.resource.role": "flow-run"}],
        payload={"iteration": alarm.iteration, **_as_json(alarm.facts()), "message": str(alarm)},
    )


def _as_json(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts with NaN and inf as text, which JSON has no numbers for."""
    finite = {name: not isinstance(value, float) or math.isfinite(value) for name, value in facts.items()}
    return {name: value if finite[name] else str(value) for name, value in facts.items()}

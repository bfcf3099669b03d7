"""The automations for silent flow runs, as Prefect understands them."""

from pathlib import Path
from typing import Any

from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.flow_engine import MINIMUM_HEARTBEAT_INTERVAL
from prefect.settings import get_current_settings

from embodyflow.orchestration.server.availability import FINAL_TIMEOUT_SECONDS
from embodyflow.orchestration.server.settings import HEARTBEAT_SECONDS, SUBFLOW_HEARTBEAT
from embodyflow.stack.heartbeats import SILENCE_SECONDS, of_deployments, of_subflows

ROOT = Path(__file__).resolve().parents[3]


def trigger_of(automation: dict[str, Any]) -> EventTrigger:
    trigger = AutomationCore.model_validate(automation).trigger
    assert isinstance(trigger, EventTrigger)
    assert (trigger.posture, trigger.within.total_seconds()) == (Posture.Proactive, SILENCE_SECONDS)
    [heartbeat] = trigger.after
    assert trigger.expect == {"prefect.flow-run.*", heartbeat}  # a final state is an event too
    return trigger


def test_prefect_understands_the_automation_for_deployments() -> None:
    trigger = trigger_of(of_deployments(["one", "two"], SILENCE_SECONDS))
    assert trigger.after == {"prefect.flow-run.heartbeat"}
    related = trigger.model_dump(mode="json")["match_related"]
    assert related["prefect.resource.id"] == ["prefect.deployment.one", "prefect.deployment.two"]


def test_only_our_heartbeats_start_the_automation_for_subflows() -> None:
    assert trigger_of(of_subflows(SILENCE_SECONDS)).after == {SUBFLOW_HEARTBEAT}


def test_a_server_that_a_run_waits_for_does_not_end_it_meanwhile() -> None:
    assert HEARTBEAT_SECONDS == MINIMUM_HEARTBEAT_INTERVAL
    assert SILENCE_SECONDS >= FINAL_TIMEOUT_SECONDS + HEARTBEAT_SECONDS


def test_the_server_notices_a_silent_run_as_soon_as_the_documentation_says() -> None:
    every = get_current_settings().server.events.proactive_granularity
    page = (ROOT / "docs" / "how-to" / "resume.md").read_text()
    assert f"at most {SILENCE_SECONDS + every.total_seconds():.0f} seconds after the last process is gone" in page

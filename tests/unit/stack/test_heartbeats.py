"""The automation for silent flow runs, as Prefect understands it."""

from pathlib import Path

from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.flow_engine import MINIMUM_HEARTBEAT_INTERVAL
from prefect.settings import get_current_settings

from embodyflow.orchestration.server.availability import FINAL_TIMEOUT_SECONDS
from embodyflow.stack.heartbeats import HEARTBEAT_SECONDS, SILENCE_SECONDS, automation

ROOT = Path(__file__).resolve().parents[3]


def test_prefect_understands_the_automation() -> None:
    core = AutomationCore.model_validate(automation(["one", "two"], SILENCE_SECONDS))
    trigger = core.trigger
    assert isinstance(trigger, EventTrigger)
    assert (trigger.posture, trigger.within.total_seconds()) == (Posture.Proactive, SILENCE_SECONDS)
    related = trigger.model_dump(mode="json")["match_related"]
    assert related["prefect.resource.id"] == ["prefect.deployment.one", "prefect.deployment.two"]


def test_a_server_that_a_run_waits_for_does_not_end_it_meanwhile() -> None:
    assert HEARTBEAT_SECONDS == MINIMUM_HEARTBEAT_INTERVAL
    assert SILENCE_SECONDS >= FINAL_TIMEOUT_SECONDS + HEARTBEAT_SECONDS


def test_the_server_notices_a_silent_run_as_soon_as_the_documentation_says() -> None:
    every = get_current_settings().server.events.proactive_granularity
    page = (ROOT / "docs" / "how-to" / "resume.md").read_text()
    assert f"at most {SILENCE_SECONDS + every.total_seconds():.0f} seconds after the last process is gone" in page

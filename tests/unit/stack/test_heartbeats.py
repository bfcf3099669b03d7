"""The automation for silent flow runs, as Prefect understands it."""

from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

from embodyflow.stack.heartbeats import HEARTBEAT_SECONDS, SILENCE_SECONDS, automation


def test_prefect_understands_the_automation() -> None:
    core = AutomationCore.model_validate(automation(["one", "two"], SILENCE_SECONDS))
    trigger = core.trigger
    assert isinstance(trigger, EventTrigger)
    assert (trigger.posture, trigger.within.total_seconds()) == (Posture.Proactive, SILENCE_SECONDS)
    related = trigger.model_dump(mode="json")["match_related"]
    assert related["prefect.resource.id"] == ["prefect.deployment.one", "prefect.deployment.two"]


def test_some_missed_heartbeats_do_not_end_a_run() -> None:
    assert SILENCE_SECONDS > 5 * HEARTBEAT_SECONDS

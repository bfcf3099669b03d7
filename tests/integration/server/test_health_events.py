"""A real server has the automations for alarms once, and acts on an alarm when one of them is switched on."""

import uuid
from datetime import UTC, datetime

import pytest
from waiting import eventually

from embodyflow.stack.health_automations import CANCEL, NOTIFY, install_health_automations
from embodyflow.stack.prefect_api import PrefectApi

pytestmark = pytest.mark.integration


def raise_alarm(api: PrefectApi, flow_run: str) -> None:
    """Send the event of an alarm as a run does."""
    event = {
        "occurred": datetime.now(UTC).isoformat(),
        "event": "embodyflow.health.spike",
        "resource": {"prefect.resource.id": "embodyflow.run.mine", "prefect.resource.name": "mine"},
        "related": [{"prefect.resource.id": f"prefect.flow-run.{flow_run}", "prefect.resource.role": "flow-run"}],
        "payload": {"message": "health.spike: in iteration 7 the norm is high"},
        "id": str(uuid.uuid4()),
    }
    api.request("POST", "/events", [event])


def test_an_alarm_cancels_its_run_once_the_automation_is_on(prefect_api: str) -> None:
    api = PrefectApi(prefect_api)
    for _ in range(2):
        install_health_automations(api)
    named = {"automations": {"name": {"any_": [NOTIFY, CANCEL]}}}
    found = {each["name"]: each for each in api.request("POST", "/automations/filter", named)}
    assert {name: each["enabled"] for name, each in found.items()} == {NOTIFY: False, CANCEL: False}
    flow = api.request("POST", "/flows/", {"name": f"flow-{uuid.uuid4()}"})["id"]
    body = {"flow_id": flow, "state": {"type": "RUNNING", "name": "Running"}}
    endangered, other = (str(api.request("POST", "/flow_runs/", body)["id"]) for _ in range(2))
    api.request("PATCH", f"/automations/{found[CANCEL]['id']}", {"enabled": True})
    try:
        raise_alarm(api, endangered)
        assert eventually(lambda: state_of(api, endangered) in ("CANCELLING", "CANCELLED"), 60)
        assert state_of(api, other) == "RUNNING"
    finally:
        api.request("PATCH", f"/automations/{found[CANCEL]['id']}", {"enabled": False})


def state_of(api: PrefectApi, flow_run: str) -> str:
    run = api.flow_run(flow_run)
    assert run is not None
    return str(run["state_type"])

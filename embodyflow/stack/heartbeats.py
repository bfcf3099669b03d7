"""The automations that end flow runs whose heartbeat stops, when nothing else is left to report their end.

Each process reports the end of the one that it started, and a watcher reports for a flow's process. If all of them are
gone at once, as after a power failure, the server notices that the heartbeats of the flow run and of its subflow runs
are missing. See "detect zombie flows" in Prefect's documentation.
"""

from collections.abc import Sequence
from typing import Any

from embodyflow.orchestration.server.settings import HEARTBEAT_SECONDS, SUBFLOW_HEARTBEAT
from embodyflow.stack.prefect_api import PrefectApi

OUTAGE_SECONDS = 120.0
"""How long a server may be away, as while it is restarted, without ending a run by the heartbeats that it misses."""

SILENCE_SECONDS = OUTAGE_SECONDS + HEARTBEAT_SECONDS
"""How long a flow run may be silent; the server notices it up to 5 s later. Prefect permits 10 s."""


def install_automations(api: PrefectApi, work_pool: str) -> None:
    """Create the automations for the flow runs of a work pool's deployments, or bring older ones up to date.

    Other flow runs on a shared server are not touched: they may have rarer heartbeats or none.
    """
    found = api.request("POST", "/deployments/filter", {"work_pools": {"name": {"any_": [work_pool]}}})
    for wanted in (of_deployments([each["id"] for each in found], SILENCE_SECONDS), of_subflows(SILENCE_SECONDS)):
        named = {"automations": {"name": {"any_": [wanted["name"]]}}}
        if existing := api.request("POST", "/automations/filter", named):
            api.request("PUT", f"/automations/{existing[0]['id']}", wanted)
        else:
            api.request("POST", "/automations/", wanted)


def of_deployments(deployments: Sequence[str], seconds: float) -> dict[str, Any]:
    """Return the automation for flow runs of deployments, in the form of Prefect's API.

    Args:
        deployments: Ids of the deployments.
        seconds: Silence after a heartbeat that ends a flow run.
    """
    related = {
        "prefect.resource.role": "deployment",
        "prefect.resource.id": [f"prefect.deployment.{each}" for each in deployments],
    }
    name = "embodyflow: end a flow run without a heartbeat"
    return _automation(name, "prefect.flow-run.heartbeat", seconds, {"match_related": related})


def of_subflows(seconds: float) -> dict[str, Any]:
    """Return the automation for subflow runs, such as iterations, in the form of Prefect's API.

    Args:
        seconds: Silence after a heartbeat that ends a flow run.
    """
    return _automation("embodyflow: end a subflow run without a heartbeat", SUBFLOW_HEARTBEAT, seconds, {})


def _automation(name: str, heartbeat: str, seconds: float, match: dict[str, Any]) -> dict[str, Any]:
    """Return an automation that ends a flow run if no event of it follows a heartbeat."""
    return {
        "name": name,
        "description": "Its process, its worker and its watcher are gone. The run can be resumed.",
        "trigger": {
            "type": "event",
            "posture": "Proactive",
            "match": {"prefect.resource.id": "prefect.flow-run.*"},
            **match,
            "for_each": ["prefect.resource.id"],
            "after": [heartbeat],
            "expect": ["prefect.flow-run.*", heartbeat],
            "threshold": 1,
            "within": seconds,
        },
        "actions": [
            {
                "type": "change-flow-run-state",
                "state": "CRASHED",
                "name": "Crashed",
                "message": f"No heartbeat for {seconds:.0f} s: its process is gone.",
            }
        ],
    }

"""The automation that ends a flow run whose heartbeat stops, when nothing else is left to report its end.

Each process reports the end of the one that it started, and a watcher reports for a flow's process. If all of them are
gone at once, as after a power failure, the server notices that the flow run's heartbeat is missing. See "detect zombie
flows" in Prefect's documentation.
"""

from collections.abc import Sequence
from typing import Any

from embodyflow.stack.prefect_api import PrefectApi

HEARTBEAT_SECONDS = 30
"""Interval of heartbeats, the shortest that Prefect has."""

OUTAGE_SECONDS = 120.0
"""How long a server may be away, as while it is restarted, without ending a run by the heartbeats that it misses."""

SILENCE_SECONDS = OUTAGE_SECONDS + HEARTBEAT_SECONDS
"""How long a flow run may be silent; the server notices it up to 5 s later. Prefect permits 10 s."""

_NAME = "embodyflow: end a flow run without a heartbeat"


def install_automation(api: PrefectApi, work_pool: str) -> None:
    """Create the automation for the deployments of a work pool, or bring an older one up to date.

    Other flow runs on a shared server are not touched: they may have rarer heartbeats or none.
    """
    found = api.request("POST", "/deployments/filter", {"work_pools": {"name": {"any_": [work_pool]}}})
    wanted = automation([each["id"] for each in found], SILENCE_SECONDS)
    existing = api.request("POST", "/automations/filter", {"automations": {"name": {"any_": [_NAME]}}})
    if existing:
        api.request("PUT", f"/automations/{existing[0]['id']}", wanted)
    else:
        api.request("POST", "/automations/", wanted)


def automation(deployments: Sequence[str], seconds: float) -> dict[str, Any]:
    """Return the automation in the form of Prefect's API.

    Args:
        deployments: Ids of the deployments whose flow runs it watches.
        seconds: Silence after a heartbeat that ends a flow run.
    """
    return {
        "name": _NAME,
        "description": "Its process, its worker and its watcher are gone. The run can be resumed.",
        "trigger": {
            "type": "event",
            "posture": "Proactive",
            "match": {"prefect.resource.id": "prefect.flow-run.*"},
            "match_related": {
                "prefect.resource.role": "deployment",
                "prefect.resource.id": [f"prefect.deployment.{each}" for each in deployments],
            },
            "for_each": ["prefect.resource.id"],
            "after": ["prefect.flow-run.heartbeat"],
            "expect": ["prefect.flow-run.*"],
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

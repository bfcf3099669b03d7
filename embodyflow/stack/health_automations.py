"""Automations that act on the events of runs' health. A stack creates them once; they are the user's from then on.

The events are those of :mod:`embodyflow.orchestration.health.reporting`. Both automations are switched off where they
would surprise: cancelling is up to the user, and a notification needs a block with an address.
"""

from typing import Any

from embodyflow.orchestration.server.settings import HEALTH_EVENT
from embodyflow.stack.prefect_api import PrefectApi

NOTIFY = "embodyflow: report a run in danger"
CANCEL = "embodyflow: cancel a run in danger"
BLOCK = "embodyflow-health"
"""Name of the notification block that the first automation sends through, of whatever type."""

SUBJECT = "embodyflow: {{ event.resource.name }}"
BODY = "{{ event.payload.message }}"


def install_health_automations(api: PrefectApi) -> None:
    """Create the automations that are missing. Those that exist stay as they are, whatever the user made of them.

    The exception is a notification without an address, which gets one once there is a block of the name.
    """
    block = notification_block(api)
    existing = _named(api, NOTIFY)
    if existing is None:
        api.request("POST", "/automations/", reporting(block))
    elif block is not None and [each["type"] for each in existing["actions"]] == ["do-nothing"]:
        api.request("PUT", f"/automations/{existing['id']}", reporting(block))
    if _named(api, CANCEL) is None:
        api.request("POST", "/automations/", cancelling())


def notification_block(api: PrefectApi) -> str | None:
    """Return the id of the block ``embodyflow-health`` that can send notifications; ``None`` without one."""
    condition = {
        "block_documents": {"name": {"any_": [BLOCK]}, "is_anonymous": {"eq_": False}},
        "block_schemas": {"block_capabilities": {"all_": ["notify"]}},
    }
    found = api.request("POST", "/block_documents/filter", condition)
    return str(found[0]["id"]) if found else None


def reporting(block: str | None) -> dict[str, Any]:
    """Return the automation that reports each alarm, in the form of Prefect's API.

    Args:
        block: Id of a notification block; ``None`` lets the automation do nothing, so that the UI shows it.
    """
    send = {"type": "send-notification", "block_document_id": block, "subject": SUBJECT, "body": BODY}
    note = f"Create a notification block named {BLOCK}, of Slack or e-mail or another type, and start the stack again."
    return {
        "name": NOTIFY,
        "description": "Sends each alarm of health.*.action." if block is not None else note,
        "enabled": block is not None,
        "trigger": _trigger(),
        "actions": [send if block is not None else {"type": "do-nothing"}],
    }


def cancelling() -> dict[str, Any]:
    """Return the automation that cancels a run at its first alarm, in the form of Prefect's API; it is switched off."""
    return {
        "name": CANCEL,
        "description": "Cancels a run at any alarm of health.*.action. Switch it on, or copy it for some detectors.",
        "enabled": False,
        "trigger": _trigger(),
        "actions": [{"type": "cancel-flow-run"}],
    }


def _trigger() -> dict[str, Any]:
    """Return a trigger by any alarm of any run."""
    return {
        "type": "event",
        "posture": "Reactive",
        "match": {"prefect.resource.id": "embodyflow.run.*"},
        "expect": [f"{HEALTH_EVENT}.*"],
        "for_each": ["prefect.resource.id"],
        "threshold": 1,
        "within": 0,
    }


def _named(api: PrefectApi, name: str) -> dict[str, Any] | None:
    found = api.request("POST", "/automations/filter", {"automations": {"name": {"any_": [name]}}})
    return dict(found[0]) if found else None

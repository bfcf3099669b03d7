"""The automations for the health of runs: Prefect understands them, and a stack creates each of them once."""

from typing import Any

import pytest
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

from embodyflow.stack.health_automations import CANCEL, NOTIFY, cancelling, install_health_automations, reporting

BLOCK = "11111111-1111-1111-1111-111111111111"


class Server:
    """Stands for a server's API: it keeps automations and knows one block or none."""

    def __init__(self) -> None:
        self.automations: dict[str, dict[str, Any]] = {}
        self.blocks: list[dict[str, Any]] = []

    def request(self, method: str, path: str, body: Any = None) -> Any:
        if path == "/block_documents/filter":
            return self.blocks
        if path == "/automations/filter":
            [name] = body["automations"]["name"]["any_"]
            return [self.automations[name]] if name in self.automations else []
        self.automations[body["name"]] = {**body, "id": body["name"]}
        return self.automations[body["name"]]


@pytest.mark.parametrize("automation", [reporting(None), reporting(BLOCK), cancelling()])
def test_prefect_understands_the_automations(automation: dict[str, Any]) -> None:
    trigger = AutomationCore.model_validate(automation).trigger
    assert isinstance(trigger, EventTrigger) and trigger.posture is Posture.Reactive
    assert trigger.expect == {"embodyflow.health.*"}


def test_automations_are_created_once_and_stay_the_users() -> None:
    server: Any = Server()
    install_health_automations(server)
    assert {name: each["enabled"] for name, each in server.automations.items()} == {NOTIFY: False, CANCEL: False}
    server.automations[CANCEL]["enabled"] = True
    install_health_automations(server)
    assert server.automations[CANCEL]["enabled"]
    server.blocks.append({"id": BLOCK})
    install_health_automations(server)
    assert (
        server.automations[NOTIFY]["actions"][0]["block_document_id"] == BLOCK and server.automations[NOTIFY]["enabled"]
    )
    server.automations[NOTIFY]["enabled"] = False
    install_health_automations(server)
    assert not server.automations[NOTIFY]["enabled"]

"""The server ends a flow run whose heartbeat stops, and no run that goes on or belongs to somebody else."""

import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from servers import prefect_server
from waiting import eventually

from embodyflow.orchestration.server.settings import SUBFLOW_HEARTBEAT
from embodyflow.stack import heartbeats
from embodyflow.stack.heartbeats import install_automations
from embodyflow.stack.prefect_api import PrefectApi

pytestmark = pytest.mark.integration

SILENCE = 10.0


class Deployment:
    """A deployment in a work pool of its own, with flow runs that no process runs."""

    def __init__(self, api: PrefectApi) -> None:
        self._api, self.pool = api, f"pool-{uuid.uuid4()}"
        api.create_work_pool(self.pool)
        self._flow = api.request("POST", "/flows/", {"name": f"flow-{uuid.uuid4()}"})["id"]
        body = {"name": "one", "flow_id": self._flow, "work_pool_name": self.pool}
        self._id = api.request("POST", "/deployments/", body)["id"]

    def start(self) -> str:
        """Return the id of a running flow run that has sent a heartbeat."""
        run = self._api.request("POST", f"/deployments/{self._id}/create_flow_run", {})["id"]
        self._api.set_state(run, "RUNNING", "started")
        self.beat(run)
        return str(run)

    def start_subflow(self) -> str:
        """Return the id of a running flow run without a deployment, as of an iteration, that has sent a heartbeat."""
        body = {"flow_id": self._flow, "state": {"type": "RUNNING", "name": "Running"}}
        run = self._api.request("POST", "/flow_runs/", body)["id"]
        self.beat(run, SUBFLOW_HEARTBEAT)
        return str(run)

    def beat(self, run: str, name: str = "prefect.flow-run.heartbeat") -> None:
        """Send a heartbeat as Prefect's engine or a subflow does."""
        related = [{"prefect.resource.id": f"prefect.deployment.{self._id}", "prefect.resource.role": "deployment"}]
        event = {
            "occurred": datetime.now(UTC).isoformat(),
            "event": name,
            "resource": {"prefect.resource.id": f"prefect.flow-run.{run}"},
            "related": [] if name == SUBFLOW_HEARTBEAT else related,
            "id": str(uuid.uuid4()),
        }
        self._api.request("POST", "/events", [event])


@pytest.fixture
def api(tmp_path: Path) -> Iterator[PrefectApi]:
    """Yield a client of a server without the automations and the events of other tests."""
    with prefect_server(tmp_path) as url:
        yield PrefectApi(url)


def test_a_run_without_a_heartbeat_is_ended(api: PrefectApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "SILENCE_SECONDS", SILENCE)
    ours, theirs = Deployment(api), Deployment(api)
    install_automations(api, theirs.pool)
    install_automations(api, ours.pool)  # older automations are brought up to date
    installed = api.request("POST", "/automations/filter", {})
    assert len(installed) == 2 and all(each["enabled"] for each in installed)
    dead, alive, done, other = ours.start(), ours.start(), ours.start(), theirs.start()
    within, going_on, finished = ours.start_subflow(), theirs.start_subflow(), ours.start_subflow()
    for each in (done, finished):
        api.set_state(each, "COMPLETED", "done")

    def kind(run: str) -> str:
        found = api.flow_run(run)
        assert found is not None
        return str(found["state_type"])

    def is_ended() -> bool:
        time.sleep(0.5)
        ours.beat(alive)
        theirs.beat(going_on, SUBFLOW_HEARTBEAT)
        return kind(dead) == kind(within) == "CRASHED"

    assert eventually(is_ended, SILENCE + 60.0)
    assert [kind(each) for each in (alive, going_on, other)] == ["RUNNING"] * 3
    assert [kind(each) for each in (done, finished)] == ["COMPLETED"] * 2
    for each in (alive, going_on, other):
        api.set_state(each, "COMPLETED", "the test is over")

"""The few calls we make to a Prefect server's REST API.

Prefect's own client takes two seconds to import; a launcher that is only to poll and to tidy up should not.
"""

import base64
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from http.client import HTTPException, InvalidURL
from typing import Any

from embodyflow.errors import ConfigError
from embodyflow.orchestration.server.flow_run_states import was_cancelled
from embodyflow.orchestration.server.settings import MAX_RUNS

ACTIVE = ("RUNNING", "PENDING", "CANCELLING")
TERMINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
ERROR_LEVEL = 40
TIMEOUT = 10.0
PAUSES = (0.2, 0.8, 3.2)
"""Seconds before a request is made again that was answered by 503: another one had locked the SQLite database."""
RESUME_TAG = "resume"
WORKER_LABEL = "prefect.worker.name"
"""What Prefect's worker puts on a run that it starts; the process id beside is a bare number, of no machine."""


class PrefectApi:
    """A Prefect server.

    Args:
        url: its API's address, such as ``http://127.0.0.1:4200/api``.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    @property
    def ui_url(self) -> str:
        """Where people look at it."""
        return self.url.removesuffix("/api")

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON answer to one request, None when it has no body; a server that is busy is asked again.

        Raises:
            urllib.error.URLError: the server cannot be reached or refuses; HTTPError carries its answer.
            ConfigError: what answers is no Prefect API.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **_authorization()}
        for pause in (*PAUSES, None):
            try:
                request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
                with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                    content = answer.read()
                return json.loads(content) if content else None
            except urllib.error.HTTPError as error:
                if error.code != HTTPStatus.SERVICE_UNAVAILABLE or pause is None:
                    raise
                time.sleep(pause)
            except (ValueError, InvalidURL) as error:  # not JSON, or no address at all
                raise ConfigError(
                    f"PREFECT_API_URL={self.url}: is no Prefect API; allowed are addresses such as "
                    "http://127.0.0.1:4200/api"
                ) from error
            except (TimeoutError, HTTPException) as error:  # neither says where it happened
                raise urllib.error.URLError(f"{self.url} did not answer: {error}") from error
        raise AssertionError("the last attempt answers or raises")

    def is_healthy(self) -> bool:
        """Whether the server answers."""
        try:
            return bool(self.request("GET", "/health"))
        except OSError:  # URLError, a refused or broken connection, a time-out
            return False

    def create_work_pool(self, name: str) -> None:
        """Create a work pool of type process, unless there is one of that name."""
        try:
            self.request("POST", "/work_pools/", {"name": name, "type": "process"})
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise

    def work_pool_is_ready(self, name: str) -> bool:
        """Whether a worker polls the pool."""
        return bool(self.request("GET", f"/work_pools/{name}")["status"] == "READY")

    def flow_run(self, flow_run_id: str) -> dict[str, Any] | None:
        """Return the flow run as the server knows it; ``None`` where it does not: somebody has deleted it."""
        try:
            run: dict[str, Any] = self.request("GET", f"/flow_runs/{flow_run_id}")
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
            return None
        return run

    def flow_runs(self, condition: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the flow runs that meet a condition in the API's filter language, all pages of them."""
        runs: list[dict[str, Any]] = []
        while True:
            page = {"flow_runs": condition, "limit": 200, "offset": len(runs)}
            more = self.request("POST", "/flow_runs/filter", page)
            runs += more
            if len(more) < 200:
                return runs

    def kinds_of_states(self, flow_run_id: str) -> list[str]:
        """Return the types of the states the flow run was in, the newest first."""
        states = self.request("GET", f"/flow_run_states/?flow_run_id={flow_run_id}")
        return [str(each["type"]) for each in sorted(states, key=lambda each: str(each["timestamp"]), reverse=True)]

    def set_state(
        self, flow_run_id: str, kind: str, message: str, *, name: str | None = None, force: bool = True
    ) -> None:
        """Move a flow run to a state such as CRASHED; concurrency slots that it held are free again."""
        state = {"type": kind, "name": name or kind.capitalize(), "message": message}
        self.request("POST", f"/flow_runs/{flow_run_id}/set_state", {"state": state, "force": force})

    def last_error(self, flow_run_id: str) -> str | None:
        """Return the last message that the flow run logged as an error."""
        condition = {"flow_run_id": {"any_": [flow_run_id]}, "level": {"ge_": ERROR_LEVEL}}
        logs = self.request("POST", "/logs/filter", {"logs": condition, "sort": "TIMESTAMP_DESC", "limit": 1})
        return str(logs[0]["message"]) if logs else None


def end_stale_runs(api: PrefectApi, message: str, *, worker: str | None = None) -> int:
    """End what a killed stack left behind: runs that look active, and scheduled ones whose hour has passed.

    The first would hold their deployment's concurrency slot for ever; the second would all start at once. A run with
    the tag ``resume`` that nobody has cancelled is not ended but told to go on when there is a worker. So is one that
    could still say that it crashed, while the server that was to start it again was going too
    (:mod:`embodyflow.orchestration.server.resumption`).

    Args:
        api: the server.
        message: why, shown with the runs.
        worker: name of this stack's Prefect worker, which is gone. If given, the server or its database may be shared:
            only runs that this worker has started are ended, and those within them.

    Returns:
        How many runs were ended or told to go on.
    """
    stale = api.flow_runs({"state": {"type": {"any_": [*ACTIVE, "CRASHED"]}}})
    stale = [run for run in stale if run["state_type"] != "CRASHED" or (_goes_on(run) and run["run_count"] < MAX_RUNS)]
    late: list[dict[str, Any]] = []
    if worker is not None:
        stale = [run for run in stale if run["labels"].get(WORKER_LABEL) == worker]
        stale += _runs_within(api, stale)
    else:
        now = datetime.now(UTC).isoformat()
        late = api.flow_runs({"state": {"type": {"any_": ["SCHEDULED"]}}, "expected_start_time": {"before_": now}})
        stale += [run for run in late if run["start_time"] is not None]  # they wait to be run again
    for run in stale:
        if _was_cancelled(api, run):
            api.set_state(run["id"], "CANCELLED", message)
        elif _goes_on(run):
            api.set_state(run["id"], "SCHEDULED", message, name="AwaitingRetry")
        else:
            api.set_state(run["id"], "CRASHED", message)
    missed = [run for run in late if run["start_time"] is None]
    for run in missed:
        api.set_state(run["id"], "CANCELLED", "Its time passed while no stack was up.")
    return len(stale) + len(missed)


def _goes_on(run: Mapping[str, Any]) -> bool:
    return RESUME_TAG in run["tags"] and run["parent_task_run_id"] is None


def _was_cancelled(api: PrefectApi, run: Mapping[str, Any]) -> bool:
    if run["state_type"] == "CRASHED":
        return was_cancelled(api.kinds_of_states(run["id"]))
    return bool(run["state_type"] == "CANCELLING")


def _runs_within(api: PrefectApi, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the active runs of iterations and the like, which carry no worker's label."""
    parents = {"any_": [run["id"] for run in runs]}
    return api.flow_runs({"parent_flow_run_id": parents, "state": {"type": {"any_": ACTIVE}}})


def _authorization() -> dict[str, str]:
    """The credentials that Prefect's own client would send."""
    if key := os.environ.get("PREFECT_API_KEY"):
        return {"Authorization": f"Bearer {key}"}
    if secret := os.environ.get("PREFECT_API_AUTH_STRING"):
        return {"Authorization": "Basic " + base64.b64encode(secret.encode()).decode()}
    return {}

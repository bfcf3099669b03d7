"""A small client for a Prefect server's REST API.

Prefect's own client takes two seconds to import, too long for a launcher that only polls and cleans up.
"""

import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from http.client import HTTPException, InvalidURL
from typing import Any
from urllib.parse import quote

from embodyflow.errors import ConfigError
from embodyflow.orchestration.server.credentials import REFUSED, Credentials, users_credentials
from embodyflow.orchestration.server.flow_run_states import was_cancelled
from embodyflow.orchestration.server.rest import ask
from embodyflow.orchestration.server.settings import MAX_RUNS
from embodyflow.stack.stack_folder import StackFolder, StackState

ACTIVE = ("RUNNING", "PENDING", "CANCELLING", "PAUSED")
TERMINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
ERROR_LEVEL = 40
TIMEOUT = 60.0
"""Seconds that the server has for an answer, as Prefect's own client waits; a busy one needs more than ten."""
HEALTH_TIMEOUT = 10.0
PAUSES = (0.2, 0.8, 3.2)
"""Seconds before each retry of a request that was answered by 503: another request had locked the SQLite database."""
RESUME_TAG = "resume"
SUSPENDED = "Suspended"
"""Name of the state of a flow run that waits without a process. A paused one has a process."""
WORKER_LABEL = "prefect.worker.name"
"""Label that Prefect's worker puts on a run it starts; the process id that it adds does not identify a machine."""


NO_CREDENTIALS = Credentials()


class PrefectApi:
    """A client for one Prefect server.

    Args:
        url: Address of the API, such as ``http://127.0.0.1:4200/api``.
        credentials: Credentials that the server asks for.
    """

    def __init__(self, url: str, credentials: Credentials = NO_CREDENTIALS) -> None:
        self.url, self._credentials = url.rstrip("/"), credentials

    @property
    def ui_url(self) -> str:
        """Address of the web UI."""
        return self.url.removesuffix("/api")

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Any:
        """Return the JSON answer to a request, or None if the answer has no body; retry while the server is busy.

        Raises:
            urllib.error.URLError: The server cannot be reached or refuses; HTTPError carries its answer.
            ConfigError: The address does not answer as a Prefect API, or it refuses the credentials.
        """
        headers = self._credentials.headers()
        for pause in (*PAUSES, None):
            try:
                return ask(method, self.url + path, body, headers=headers, timeout=timeout or TIMEOUT)
            except urllib.error.HTTPError as error:
                if error.code in REFUSED:
                    raise ConfigError(self._credentials.refusal(self.url, error.code)) from error
                if error.code != HTTPStatus.SERVICE_UNAVAILABLE or pause is None:
                    raise
                time.sleep(pause)
            except (ValueError, InvalidURL) as error:  # the answer is not JSON, or the address is malformed
                raise ConfigError(
                    f"PREFECT_API_URL={self.url}: is not a Prefect API; allowed are addresses such as "
                    "http://127.0.0.1:4200/api"
                ) from error
            except (TimeoutError, HTTPException) as error:  # neither names the address
                raise urllib.error.URLError(f"{self.url} did not answer: {error}") from error
        raise AssertionError("the last attempt returns or raises")

    def is_healthy(self) -> bool:
        """Return True if the server answers."""
        try:
            return bool(self.request("GET", "/health", timeout=HEALTH_TIMEOUT))
        except OSError:  # URLError, a refused or broken connection, a timeout
            return False

    def check_access(self) -> None:
        """Make a request that needs credentials.

        Raises:
            ConfigError: The server refuses the credentials.
        """
        self.request("POST", "/work_pools/filter", {"limit": 1})

    def create_work_pool(self, name: str) -> None:
        """Create a work pool of type process, unless one of that name exists."""
        try:
            self.request("POST", "/work_pools/", {"name": name, "type": "process"})
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise

    def heartbeat(self, pool: str, worker: str) -> str | None:
        """Return the time of a worker's latest heartbeat, or None if the server knows no worker of that name."""
        workers = self.request("POST", f"/work_pools/{pool}/workers/filter", {})
        return next((str(each["last_heartbeat_time"]) for each in workers if each["name"] == worker), None)

    def flow_run(self, flow_run_id: str) -> dict[str, Any] | None:
        """Return the server's record of the flow run, or None if the run was deleted."""
        try:
            run: dict[str, Any] = self.request("GET", f"/flow_runs/{flow_run_id}")
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
            return None
        return run

    def deployment(self, name: str) -> dict[str, Any] | None:
        """Return the server's record of a deployment ``<flow>/<name>``, or None if it has none of that name."""
        try:
            found: dict[str, Any] = self.request("GET", f"/deployments/name/{quote(name)}")
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
            return None
        return found

    def flow_runs(self, condition: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return all flow runs that match a condition in the API's filter language, over all pages."""
        runs: list[dict[str, Any]] = []
        while True:
            page = {"flow_runs": condition, "limit": 200, "offset": len(runs)}
            more = self.request("POST", "/flow_runs/filter", page)
            runs += more
            if len(more) < 200:
                return runs

    def kinds_of_states(self, flow_run_id: str) -> list[str]:
        """Return the types of the states that the flow run has been in, newest first."""
        states = self.request("GET", f"/flow_run_states/?flow_run_id={flow_run_id}")
        return [str(each["type"]) for each in sorted(states, key=lambda each: str(each["timestamp"]), reverse=True)]

    def set_state(
        self, flow_run_id: str, kind: str, message: str, *, name: str | None = None, force: bool = True
    ) -> None:
        """Move a flow run to a state such as CRASHED, which frees its concurrency slots."""
        state = {"type": kind, "name": name or kind.capitalize(), "message": message}
        self.request("POST", f"/flow_runs/{flow_run_id}/set_state", {"state": state, "force": force})

    def last_error(self, flow_run_id: str) -> str | None:
        """Return the last error message that the flow run logged, or None."""
        condition = {"flow_run_id": {"any_": [flow_run_id]}, "level": {"ge_": ERROR_LEVEL}}
        logs = self.request("POST", "/logs/filter", {"logs": condition, "sort": "TIMESTAMP_DESC", "limit": 1})
        return str(logs[0]["message"]) if logs else None


def stack_api(folder: StackFolder, state: StackState) -> PrefectApi:
    """Return a client for the stack's server with the stack's password, or with the user's credentials for theirs."""
    credentials = Credentials(auth_string=folder.auth_string()) if state.owns_server else users_credentials()
    return PrefectApi(state.api_url, credentials)


def end_stale_runs(api: PrefectApi, message: str, *, worker: str | None = None) -> int:
    """End the flow runs that a killed stack left: runs that look active, and scheduled runs whose time has passed.

    Active ones would hold their deployment's concurrency slot for ever; late ones would all start at once. A run with
    the tag ``resume`` that was not cancelled is rescheduled instead and resumes once there is a worker. The same holds
    for a tagged run that reported its crash while the server that should have restarted it was stopping
    (:mod:`embodyflow.orchestration.server.resumption`).

    Args:
        api: Client for the server.
        message: Reason, shown with the runs.
        worker: Name of this stack's Prefect worker, which is gone. Given when other stacks may share the server or its
            database: then only runs that this worker started, and their subflow runs, are ended.

    Returns:
        The number of runs that were ended or rescheduled.
    """
    stale = api.flow_runs({"state": {"type": {"any_": [*ACTIVE, "CRASHED"]}}})
    stale = [run for run in stale if run["state_type"] != "CRASHED" or (_goes_on(run) and run["run_count"] < MAX_RUNS)]
    stale = [run for run in stale if run["state_name"] != SUSPENDED]
    late: list[dict[str, Any]] = []
    if worker is not None:
        stale = [run for run in stale if run["labels"].get(WORKER_LABEL) == worker]
        stale += _runs_within(api, stale)
    else:
        now = datetime.now(UTC).isoformat()
        late = api.flow_runs({"state": {"type": {"any_": ["SCHEDULED"]}}, "expected_start_time": {"before_": now}})
        stale += [run for run in late if run["start_time"] is not None]  # started before, and due for a retry
    for run in stale:
        if _was_cancelled(api, run):
            api.set_state(run["id"], "CANCELLED", message)
        elif _goes_on(run):
            api.set_state(run["id"], "SCHEDULED", message, name="AwaitingRetry")
        else:
            api.set_state(run["id"], "CRASHED", message)
    missed = [run for run in late if run["start_time"] is None]
    for run in missed:
        api.set_state(run["id"], "CANCELLED", "The scheduled time passed while no stack was up.")
    return len(stale) + len(missed)


def _goes_on(run: Mapping[str, Any]) -> bool:
    return RESUME_TAG in run["tags"] and run["parent_task_run_id"] is None


def _was_cancelled(api: PrefectApi, run: Mapping[str, Any]) -> bool:
    if run["state_type"] == "CRASHED":
        return was_cancelled(api.kinds_of_states(run["id"]))
    return bool(run["state_type"] == "CANCELLING")


def _runs_within(api: PrefectApi, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the active subflow runs, such as iterations, which do not carry a worker's label."""
    parents = {"any_": [run["id"] for run in runs]}
    return api.flow_runs({"parent_flow_run_id": parents, "state": {"type": {"any_": ACTIVE}}})

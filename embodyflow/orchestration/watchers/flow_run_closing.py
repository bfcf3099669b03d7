"""Closing of a flow run whose process ended without a report, by a watcher: ``python -m …flow_run_closing``.

The watcher reads the flow run from a pipe, whose other end only the flow's process holds. The pipe closes when that
process ends, however it ends. Nothing here imports Prefect, which takes seconds.
"""

import json
import sys
import time
import urllib.error
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from embodyflow.orchestration.server.rest import ask

REPORT_SECONDS = 10.0
"""Seconds that a Prefect worker has to report the end of its flow's process; it also decides on a restart."""

RETRY_SECONDS = 3.0
"""Seconds that a busy server has to answer."""

_TIMEOUT = 5.0
_OPEN = ("RUNNING", "CANCELLING", "PAUSED")
_FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
_ENDED = {"type": "CRASHED", "name": "Crashed", "message": "Its process ended without a report."}
_CANCELLED = {"type": "CANCELLED", "name": "Cancelled", "message": "Its process ended while it was being cancelled."}


@dataclass(frozen=True)
class WatchedFlowRun:
    """A flow run and how to reach its server.

    Attributes:
        api_url: Address of the server's API.
        headers: HTTP headers with the credentials.
        id: Id of the flow run.
        run_count: Number of this attempt, from 1. A later attempt belongs to another process.
        has_worker: True if a Prefect worker started the process.
    """

    api_url: str
    headers: dict[str, str]
    id: str
    run_count: int
    has_worker: bool

    def line(self) -> str:
        """Return the flow run as a line for the watcher's pipe."""
        return json.dumps(asdict(self)) + "\n"


def close_last(lines: str) -> None:
    """Close the flow run in the last line that a watcher has read, if there is one and no one has reported its end.

    Raises:
        OSError: The server refuses the request, or does not answer in time.
    """
    if lines.strip():
        close(WatchedFlowRun(**json.loads(lines.splitlines()[-1])))


def close(run: WatchedFlowRun) -> None:
    """Move a flow run and its subflow runs to a final state, unless its worker does so or another attempt runs.

    A process that reports the end of its flow run may have failed to report that of a subflow run: Prefect's server can
    keep one in state Running that a signal has ended.

    Raises:
        OSError: The server refuses the request, or does not answer in time.
    """
    deadline = time.monotonic() + (REPORT_SECONDS if run.has_worker else 0.0)
    while (state := _state(run)) in _OPEN and time.monotonic() < deadline:
        time.sleep(0.5)
    if state in _OPEN:
        _end(run, run.id, _CANCELLED if state == "CANCELLING" else _ENDED)
    if state in _OPEN or state in _FINAL:
        within = {"parent_flow_run_id": {"any_": [run.id]}, "state": {"type": {"any_": ["RUNNING", "PENDING"]}}}
        for each in _ask(run, "POST", "/flow_runs/filter", {"flow_runs": within}) or ():
            _end(run, each["id"], _ENDED)


def _state(run: WatchedFlowRun) -> str | None:
    """Return the type of the flow run's state, or None if another attempt has begun or the run or server is gone."""
    found = _ask(run, "GET", f"/flow_runs/{run.id}")
    return None if found is None or found["run_count"] != run.run_count else str(found["state_type"])


def _end(run: WatchedFlowRun, flow_run_id: str, state: Mapping[str, str]) -> None:
    _ask(run, "POST", f"/flow_runs/{flow_run_id}/set_state", {"state": state, "force": True})


def _ask(run: WatchedFlowRun, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """Return the JSON answer to a request, or None if the server or what is asked for is gone."""
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            return ask(method, run.api_url + path, body, headers=run.headers, timeout=_TIMEOUT)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            if error.code != 503 or time.monotonic() >= deadline:  # 503: another request has locked the database
                raise
        except OSError as error:
            if isinstance(getattr(error, "reason", error), ConnectionRefusedError):  # it ended with the flow's process
                return None
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.2)


if __name__ == "__main__":
    close_last(sys.stdin.read())

"""The flow run of a process that ended without a report is closed; one that others look after is left alone."""

import json
import threading
import time
import urllib.error
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from embodyflow.orchestration.watchers import flow_run_closing as module
from embodyflow.orchestration.watchers.flow_run_closing import WatchedFlowRun, close, close_last
from embodyflow.process.ports import free_port


class Server:
    """A Prefect server with one flow run and its subflow runs."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {"mine": "RUNNING", "iteration-1": "COMPLETED", "iteration-2": "RUNNING"}
        self.run_count = 1
        self.password = "Basic mine"
        self.busy = 0

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/api/flow_runs/filter":
            kinds = body["flow_runs"]["state"]["type"]["any_"]
            assert body["flow_runs"]["parent_flow_run_id"] == {"any_": ["mine"]}
            children = [name for name in self.states if name != "mine"]
            return 200, [{"id": name} for name in children if self.states[name] in kinds]
        name = path.split("/")[3]
        if name not in self.states:
            return 404, {}
        if path.endswith("/set_state"):
            self.states[name] = body["state"]["type"]
            return 201, {}
        return 200, {"run_count": self.run_count, "state_type": self.states[name]}


@pytest.fixture
def server() -> Iterator[tuple[Server, WatchedFlowRun]]:
    fake = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def do_GET(self) -> None:
            self.respond({})

        def respond(self, body: dict[str, Any]) -> None:
            code, answer = fake.answer(self.path, body)
            if fake.busy:
                fake.busy, code = fake.busy - 1, 503
            if self.headers["Authorization"] != fake.password:
                code = 401
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, args=[0.01], daemon=True).start()
        url = f"http://127.0.0.1:{http.server_port}/api"
        yield fake, WatchedFlowRun(url, {"Authorization": "Basic mine"}, "mine", run_count=1, has_worker=False)
        http.shutdown()


CLOSED = {"mine": "CRASHED", "iteration-1": "COMPLETED", "iteration-2": "CRASHED"}


def test_a_run_without_a_process_is_closed_with_its_iterations(server: tuple[Server, WatchedFlowRun]) -> None:
    fake, run = server
    fake.busy = 2
    earlier = replace(run, id="earlier")
    close_last(earlier.line() + run.line())
    assert fake.states == CLOSED


def test_a_watcher_that_was_told_of_no_run_asks_nothing() -> None:
    close_last("")


def test_a_paused_run_whose_process_is_gone_is_closed(server: tuple[Server, WatchedFlowRun]) -> None:
    fake, run = server
    fake.states["mine"] = "PAUSED"
    close(run)
    assert fake.states["mine"] == "CRASHED"


def test_a_run_that_was_being_cancelled_is_cancelled(server: tuple[Server, WatchedFlowRun]) -> None:
    fake, run = server
    fake.states["mine"] = "CANCELLING"
    close(run)
    assert fake.states["mine"] == "CANCELLED"


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CRASHED", "CANCELLED"])
def test_a_run_whose_end_was_reported_keeps_it(server: tuple[Server, WatchedFlowRun], state: str) -> None:
    fake, run = server
    fake.states["mine"] = state
    close(run)
    assert fake.states == CLOSED | {"mine": state}, "an iteration without a report is closed"


@pytest.mark.parametrize("state", ["SCHEDULED", "PENDING"])
def test_a_run_that_begins_again_is_left_alone(server: tuple[Server, WatchedFlowRun], state: str) -> None:
    fake, run = server
    fake.states["mine"] = state
    close(run)
    assert fake.states == {"mine": state, "iteration-1": "COMPLETED", "iteration-2": "RUNNING"}


def test_a_later_attempt_of_the_run_is_left_alone(server: tuple[Server, WatchedFlowRun]) -> None:
    fake, run = server
    fake.run_count = 2
    close(run)
    assert (fake.states["mine"], fake.states["iteration-2"]) == ("RUNNING", "RUNNING")


def test_a_worker_that_reports_the_end_is_waited_for(server: tuple[Server, WatchedFlowRun]) -> None:
    fake, run = server
    closing = threading.Thread(target=close, args=[replace(run, has_worker=True)])
    closing.start()
    time.sleep(0.2)
    assert fake.states["mine"] == "RUNNING"
    fake.states["mine"] = "SCHEDULED"  # the worker resumes it
    closing.join(10.0)
    assert not closing.is_alive() and fake.states["mine"] == "SCHEDULED"


def test_a_worker_that_is_gone_too_is_not_waited_for_forever(
    server: tuple[Server, WatchedFlowRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, run = server
    monkeypatch.setattr(module, "REPORT_SECONDS", 0.1)
    close(replace(run, has_worker=True))
    assert fake.states == CLOSED


def test_a_run_or_a_server_that_is_gone_needs_no_closing(server: tuple[Server, WatchedFlowRun]) -> None:
    close(replace(server[1], id="deleted"))
    close(replace(server[1], api_url=f"http://127.0.0.1:{free_port(0)}/api"))


def test_a_server_that_refuses_is_not_asked_again(server: tuple[Server, WatchedFlowRun]) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        close(replace(server[1], headers={}))

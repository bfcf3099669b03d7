"""What a killed stack leaves on the server is ended; what others run there is not."""

import base64
import json
import socket
import threading
import urllib.error
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from embodyflow.errors import ConfigError
from embodyflow.orchestration.server.credentials import Credentials
from embodyflow.stack import prefect_api as module
from embodyflow.stack.prefect_api import PrefectApi, end_stale_runs, stack_api
from embodyflow.stack.services import create_auth_string, environment
from embodyflow.stack.stack_folder import StackFolder, StackState

OURS, THEIRS = "vm-46318e40", "vm-e1175e60"  # names of Prefect workers


class Server:
    """A Prefect server with flow runs that remembers what state they were moved to."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.courses: dict[str, list[str]] = {}  # the kinds of states that a run has been in, the oldest first
        self.moved: dict[str, str] = {}
        self.headers: dict[str, str] = {}
        self.pools = ["taken"]
        self.busy = 0  # so many requests are refused
        self.refusal: int | None = None  # status code of an answer to wrong credentials

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/api/flow_runs/filter":
            kinds = body["flow_runs"]["state"]["type"]["any_"]
            parents = body["flow_runs"].get("parent_flow_run_id", {"any_": [run["within"] for run in self.runs]})[
                "any_"
            ]
            found = [run for run in self.runs if run["state_type"] in kinds and run["within"] in parents]
            return 200, found[body["offset"] : body["offset"] + body["limit"]]
        if not path.startswith("/api"):
            return 200, "a page for people"
        if path.startswith("/api/flow_run_states/?flow_run_id="):
            course = self.courses[path.partition("=")[2]]
            return 200, [{"type": kind, "timestamp": f"2026-01-01T00:00:{n:02}Z"} for n, kind in enumerate(course)]
        if path.endswith("/set_state"):
            self.moved[path.split("/")[3]] = body["state"]["type"]
            return 201, {}
        if path == "/api/work_pools/":
            return (409, {}) if body["name"] in self.pools else (201, self.pools.append(body["name"]))
        return 404, {}


def run(
    name: str,
    kind: str,
    worker: str | None = None,
    started: str | None = "2026-01-01",
    tags: tuple[str, ...] = (),
    run_count: int = 1,
    within: str | None = None,
    state_name: str | None = None,
) -> dict[str, Any]:
    """What Prefect 3.7.7 answered of a real run, as far as it matters; the pid is that of the flow's process."""
    labels = {"prefect.flow.id": "c90548e7-cb84-45dc-95bc-49d20ec12e20"}
    if worker is not None:
        labels |= {"prefect.worker.name": worker, "prefect.worker.type": "process"}
    facts = {"id": name, "state_type": kind, "start_time": started, "run_count": run_count, "tags": list(tags)}
    facts |= {"state_name": state_name or kind.capitalize()}
    facts |= {"labels": labels, "infrastructure_pid": None if worker is None else "7259"}
    return facts | {"within": within, "parent_task_run_id": None if within is None else f"of-{within}"}


@pytest.fixture
def server() -> Iterator[tuple[Server, PrefectApi]]:
    fake = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.answer("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def do_GET(self) -> None:
            self.answer("GET", {})

        def answer(self, method: str, body: dict[str, Any]) -> None:
            fake.headers = dict(self.headers)
            code, answer = (503, {}) if fake.busy else fake.answer(method, self.path, body)
            fake.busy = max(0, fake.busy - 1)
            code = fake.refusal or code
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode() if self.path.startswith("/api") else b"<!doctype html>")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, args=[0.01], daemon=True).start()
        yield fake, PrefectApi(f"http://127.0.0.1:{http.server_port}/api")
        http.shutdown()


def test_on_our_own_server_all_active_and_missed_runs_are_ended(server: tuple[Server, PrefectApi]) -> None:
    fake, api = server
    fake.runs = [
        run("running", "RUNNING", OURS),
        run("pending", "PENDING"),
        run("paused", "PAUSED"),
        run("suspended", "PAUSED", state_name="Suspended"),
        run("cancelling", "CANCELLING"),
        run("done", "COMPLETED"),
        run("missed", "SCHEDULED", started=None),
        run("crashed", "SCHEDULED"),
        run("nightly", "RUNNING", tags=("nightly", "resume")),
        run("iteration", "RUNNING", tags=("nightly", "resume"), within="nightly"),
        run("crashed-with-the-stack", "CRASHED", tags=("nightly", "resume")),
        run("crashed-each-time", "CRASHED", tags=("nightly", "resume"), run_count=4),
        run("crashed-by-itself", "CRASHED"),
        run("unwanted", "CANCELLING", tags=("nightly", "resume")),
        run("unwanted-and-crashed", "CRASHED", tags=("nightly", "resume")),
        run("wanted-again", "CRASHED", tags=("nightly", "resume")),
    ]
    fake.courses = {
        "crashed-with-the-stack": ["PENDING", "RUNNING", "CRASHED"],
        "unwanted-and-crashed": ["PENDING", "RUNNING", "CANCELLING", "CRASHED"],
        "wanted-again": ["RUNNING", "CANCELLING", "CANCELLED", "SCHEDULED", "RUNNING", "CRASHED"],
    }
    assert end_stale_runs(api, "why") == 12
    ended = {
        "running": "CRASHED",
        "pending": "CRASHED",
        "paused": "CRASHED",
        "cancelling": "CANCELLED",
        "crashed": "CRASHED",
    }
    goes_on = {"nightly": "SCHEDULED", "iteration": "CRASHED", "crashed-with-the-stack": "SCHEDULED"}
    goes_on["wanted-again"] = "SCHEDULED"
    ended |= {"unwanted": "CANCELLED", "unwanted-and-crashed": "CANCELLED"}
    assert fake.moved == ended | goes_on | {"missed": "CANCELLED"}


def test_on_a_shared_server_only_what_our_worker_has_left_is(server: tuple[Server, PrefectApi]) -> None:
    fake, api = server
    fake.runs = [
        run("left", "RUNNING", OURS),
        run("iteration", "RUNNING", within="left"),
        run("its-first", "COMPLETED", within="left"),
        run("nightly", "RUNNING", OURS, tags=("nightly", "resume")),
        run("crashed-with-the-stack", "CRASHED", OURS, tags=("nightly", "resume")),
        run("theirs", "RUNNING", THEIRS),
        run("their-iteration", "RUNNING", within="theirs"),
        run("their-nightly", "CRASHED", THEIRS, tags=("nightly", "resume")),
        run("nobody's", "PENDING"),
        run("missed", "SCHEDULED", started=None),
    ]
    fake.courses = {"crashed-with-the-stack": ["RUNNING", "CRASHED"]}
    assert end_stale_runs(api, "why", worker=OURS) == 4
    goes_on = {"nightly": "SCHEDULED", "crashed-with-the-stack": "SCHEDULED"}
    assert fake.moved == {"left": "CRASHED", "iteration": "CRASHED"} | goes_on


def test_all_pages_are_read(server: tuple[Server, PrefectApi]) -> None:
    fake, api = server
    fake.runs = [run(str(index), "RUNNING") for index in range(450)]
    assert len(api.flow_runs({"state": {"type": {"any_": ["RUNNING"]}}})) == 450


def test_an_existing_work_pool_is_kept_and_other_refusals_are_raised(server: tuple[Server, PrefectApi]) -> None:
    fake, api = server
    api.create_work_pool("taken")
    api.create_work_pool("new")
    assert fake.pools == ["taken", "new"]
    with pytest.raises(urllib.error.HTTPError):
        api.request("POST", "/nothing", {})


def test_a_flow_run_that_is_deleted_is_none(server: tuple[Server, PrefectApi]) -> None:
    assert server[1].flow_run("deleted") is None


STATE = StackState(1, 0.0, True, "http://unused/api", "127.0.0.1:6379", None, {})


def test_our_server_gets_the_stacks_password_and_the_users_server_gets_theirs(
    server: tuple[Server, PrefectApi], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, api = server
    folder = StackFolder(tmp_path)
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "admin:pass")
    monkeypatch.setenv("PREFECT_API_KEY", "key")
    create_auth_string(folder)
    assert folder.prefect_auth.stat().st_mode & 0o777 == 0o600
    for owns_server, password in ((True, folder.auth_string()), (False, "admin:pass")):
        state = replace(STATE, api_url=api.url, owns_server=owns_server)
        stack_api(folder, state).create_work_pool("taken")
        assert fake.headers["Authorization"] == "Basic " + base64.b64encode(password.encode()).decode()
        env = environment(folder, state)
        assert (env["PREFECT_API_AUTH_STRING"], "PREFECT_API_KEY" in env) == (password, not owns_server)


def test_the_user_may_choose_the_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", "me:chosen")
    create_auth_string(StackFolder(tmp_path))
    assert StackFolder(tmp_path).auth_string() == "me:chosen"


def test_a_stack_whose_password_is_gone_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="prefect_auth: is gone; `embodyflow down`"):
        stack_api(StackFolder(tmp_path), STATE)


@pytest.mark.parametrize("code", [401, 403])
def test_a_server_that_refuses_the_credentials_names_the_setting(server: tuple[Server, PrefectApi], code: int) -> None:
    fake, api = server
    fake.refusal = code
    with pytest.raises(ConfigError, match=rf"^PREFECT_API_AUTH_STRING: is not set, and {api.url} wants .*\({code} "):
        api.check_access()
    with pytest.raises(ConfigError, match=rf"^PREFECT_API_KEY: {api.url} refuses it"):
        PrefectApi(api.url, Credentials(api_key="old")).check_access()


def test_a_server_that_is_not_there_is_not_healthy() -> None:
    assert not PrefectApi("http://127.0.0.1:9/api").is_healthy()


def test_a_server_that_is_busy_is_asked_again(
    server: tuple[Server, PrefectApi], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, api = server
    monkeypatch.setattr(module, "PAUSES", (0.01, 0.01, 0.01))
    fake.busy = 3
    api.create_work_pool("new")
    assert fake.pools == ["taken", "new"]
    fake.busy = 4
    with pytest.raises(urllib.error.HTTPError, match="503"):
        api.create_work_pool("another")


@pytest.mark.parametrize("url", ["{server}", "http://127.0.0.1:port/api"])
def test_an_address_that_is_no_api_is_told_in_a_line(server: tuple[Server, PrefectApi], url: str) -> None:
    url = url.format(server=server[1].ui_url)
    with pytest.raises(ConfigError) as refusal:
        PrefectApi(url).is_healthy()
    assert str(refusal.value).startswith(f"PREFECT_API_URL={url}: is not a Prefect API; allowed are")


def test_a_server_that_does_not_answer_in_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/api"
        with pytest.raises(urllib.error.URLError, match=f"{url} did not answer: timed out"):
            PrefectApi(url).heartbeat("any", "worker")

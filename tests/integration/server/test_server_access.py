"""What a stranger on this machine, or a web page in the user's browser, gets from a Prefect server of ours: nothing."""

import asyncio
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import prefect_server
from support_path import SUPPORT_PATH
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from embodyflow.orchestration.server.credentials import Credentials

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
PASSWORD = "me:p#ssword"
SOME_ID = "3fbcd7e8-d274-45f4-bd12-e79f2f76c772"
COMMAND = {"job_variables": {"command": "touch /tmp/owned"}}
REQUESTS = [
    ("POST", f"/deployments/{SOME_ID}/create_flow_run", COMMAND),
    ("GET", f"/flow_runs/{SOME_ID}", None),
    ("POST", "/flow_runs/filter", {}),
    ("POST", "/work_pools/", {"name": "mine", "type": "process"}),
    ("GET", "/admin/settings", None),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with prefect_server(tmp_path_factory.mktemp("server"), auth_string=PASSWORD) as url:
        yield url


def ask(
    url: str, method: str = "GET", body: dict[str, Any] | None = None, **headers: str
) -> tuple[int, dict[str, str]]:
    """Return the status code and the headers of an answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=60) as answer:
            return answer.status, {name.lower(): value for name, value in answer.headers.items()}
    except urllib.error.HTTPError as error:
        return error.code, {name.lower(): value for name, value in error.headers.items()}


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_a_request_without_the_password_is_refused(
    url: str, method: str, path: str, body: dict[str, Any] | None
) -> None:
    assert ask(url + path, method, body)[0] == 401
    for wrong in ("", "me:", "me:p#sswore", "me:p#ssword2", ":"):
        assert ask(url + path, method, body, **Credentials(wrong).headers())[0] == 401
    assert ask(url + path, method, body, **Credentials(PASSWORD).headers())[0] in (200, 201, 404)


@pytest.mark.parametrize("path", ["/events/in", "/events/out", "/logs/out"])
def test_a_stream_without_the_password_is_closed(url: str, path: str) -> None:
    async def attack() -> None:
        address = url.replace("http", "ws") + path
        with pytest.raises(InvalidStatus):
            async with connect(address):
                pass
        for message in ({"type": "auth", "token": "me:guess"}, {"type": "auth"}, {"type": "filter", "filter": {}}):
            async with connect(address, subprotocols=["prefect"]) as websocket:  # type: ignore[list-item]
                await websocket.send(json.dumps(message))
                with pytest.raises(ConnectionClosedError):
                    await asyncio.wait_for(websocket.recv(), 30)
                assert websocket.close_code == 1008
        async with connect(address, subprotocols=["prefect"]) as websocket:  # type: ignore[list-item]
            await websocket.send(json.dumps({"type": "auth", "token": PASSWORD}))
            assert json.loads(await asyncio.wait_for(websocket.recv(), 30)) == {"type": "auth_success"}

    asyncio.run(attack())


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://localhost"])
def test_a_foreign_web_page_may_neither_ask_nor_read(url: str, origin: str) -> None:
    asked = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "authorization,content-type"}
    for headers in (asked, Credentials(PASSWORD).headers()):
        method = "OPTIONS" if headers is asked else "GET"
        assert "access-control-allow-origin" not in ask(f"{url}/admin/version", method, Origin=origin, **headers)[1]
        own = url.removesuffix("/api")
        for page in (own, own.replace("127.0.0.1", "localhost")):  # the UI itself
            answer = ask(f"{url}/admin/version", method, Origin=page, **headers)
            assert (answer[0], answer[1]["access-control-allow-origin"]) == (200, page)


@pytest.mark.parametrize("path", ["/api/health", "/api/admin/version", "/", "/ui-settings", "/sign-in"])
def test_a_foreign_host_name_is_refused_as_dns_rebinding(url: str, path: str) -> None:
    page = url.removesuffix("/api") + path
    assert ask(page, Host="evil.example:4200", **Credentials(PASSWORD).headers())[0] == 400
    assert ask(page, Host="localhost:8080", **Credentials(PASSWORD).headers())[0] == 200  # as through a tunnel


# Runs a flow without a stack. The flow tries what a stranger could, and looks where the password is to be seen.
FLOW = """
import json, os, subprocess, sys
from pathlib import Path
import psutil
from prefect import flow, get_client, task
from prefect.settings import get_current_settings
from embodyflow.orchestration.request.command_line import run_flow
from test_server_access import ask

@task
def look():
    api = get_current_settings().api
    secret = api.auth_string.get_secret_value()
    commands = {each: str(each.info["cmdline"]) for each in psutil.process_iter(["cmdline"])}  # None of a zombie
    server = [each for each in psutil.Process().children() if "guarded_server" in commands.get(each, "")]
    [listening] = [one for one in server[0].net_connections("inet") if one.status == psutil.CONN_LISTEN]
    child = subprocess.run([sys.executable, "-c", "import os; print(dict(os.environ))"], capture_output=True, text=True)
    port = api.url.partition("//")[2].partition("/")[0]
    return {
        "stranger": ask(f"{api.url}/flow_runs/filter", "POST", {})[0],
        "rebound": ask(f"{api.url}/health", Host="evil.example")[0],
        "page": "access-control-allow-origin" in ask(f"{api.url}/health", Origin="http://evil.example")[1],
        "address": listening.laddr.ip,
        "seen": secret in child.stdout or any(secret in command for command in commands.values()),
        "children": len(server),
    }

@flow
async def attacked():
    return look()

print(json.dumps(run_flow(attacked, {}, Path("none"), lambda: "stopped")))
"""


def test_a_flow_without_a_stack_has_a_server_of_the_same_kind(tmp_path: Path) -> None:
    (tmp_path / "attack.py").write_text(FLOW)
    paths = os.pathsep.join((str(Path(__file__).parent), SUPPORT_PATH))
    env = {**os.environ, "PYTHONPATH": paths, "PREFECT_HOME": str(tmp_path / "home")}
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
        env.pop(name, None)
    command = [sys.executable, "attack.py"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    expected = {"stranger": 401, "rebound": 400, "page": False, "address": "127.0.0.1", "seen": False, "children": 1}
    assert found == expected


def test_a_server_of_the_users_that_refuses_a_run_names_the_setting(url: str, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PREFECT_HOME": str(tmp_path / "home"), "PREFECT_API_URL": url}
    command = [sys.executable, "-m", "flows.grpo", "run_id=refused", f"run_root={tmp_path}/runs"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (2, "")
    line = f"PREFECT_API_AUTH_STRING: is not set, and {url} wants credentials (401 Unauthorized); "
    assert done.stderr.startswith(line) and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()

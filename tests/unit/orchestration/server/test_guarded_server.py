"""What stands around Prefect's application: foreign host names are refused, and a link signs a browser in."""

import functools
from typing import TYPE_CHECKING

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from embodyflow.orchestration.server.settings import sign_in_url

if TYPE_CHECKING:
    from embodyflow.orchestration.server.guarded_server import GuardedServer


async def _page(request: Request) -> PlainTextResponse:
    return PlainTextResponse("Prefect's")


async def _socket(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text("Prefect's")
    await websocket.close()


@functools.cache
def app() -> "GuardedServer":
    """Return a guarded server; importing it imports Prefect's, which takes seconds, also where no test here runs."""
    from embodyflow.orchestration.server.guarded_server import GuardedServer

    return GuardedServer(Starlette(routes=[Route("/", _page), WebSocketRoute("/events", _socket)]))


OWN = ("127.0.0.1:4200", "localhost:4200", "LOCALHOST", "127.0.0.1")
FOREIGN = ("evil.example", "127.0.0.1.evil.example", "evil.example:4200", "localhost.evil.example", "192.0.2.1", "")


@pytest.mark.parametrize("host", OWN)
def test_this_machines_names_are_answered(host: str) -> None:
    client = TestClient(app(), headers={"Host": host})
    assert client.get("/").text == "Prefect's"
    with client.websocket_connect("/events", headers={"Host": host}) as websocket:
        assert websocket.receive_text() == "Prefect's"


@pytest.mark.parametrize("host", FOREIGN)
def test_a_foreign_host_name_is_refused(host: str) -> None:
    client = TestClient(app(), headers={"Host": host})
    for path in ("/", "/sign-in"):
        assert client.get(path).status_code == 400
    with (
        pytest.raises((WebSocketDenialResponse, WebSocketDisconnect)),
        client.websocket_connect("/events", headers={"Host": host}),
    ):
        pass


def test_the_link_holds_the_password_where_no_server_sees_it() -> None:
    url = sign_in_url("http://127.0.0.1:4200", "me:p#s &%")
    assert url == "http://127.0.0.1:4200/sign-in#me:p%23s%20%26%25"
    answer = TestClient(app(), base_url="http://127.0.0.1:4200").get(url)
    assert "prefect-password" in answer.text and "p#s" not in answer.text
    assert answer.headers["Cache-Control"] == "no-store"

"""A flow that has written its result, but cannot report its end to Prefect."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from embodyflow.errors import ServerLostError
from embodyflow.orchestration.request import command_line


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    async def connect() -> None:
        pass

    monkeypatch.setattr(command_line, "connect", connect)
    monkeypatch.setattr(command_line, "start_flow_watcher", lambda: None)
    monkeypatch.setattr(command_line.gc, "freeze", lambda: None)
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:4200/api"}):
        yield


def lost(url: str = "http://127.0.0.1:4200/api/flow_runs/1/set_state") -> Any:
    """Return a flow that ends with a request that found no connection."""

    async def flow() -> dict[str, Any]:
        raise httpx.ConnectError("refused", request=httpx.Request("POST", url))

    return flow


@pytest.mark.usefixtures("alone")
def test_a_written_result_is_returned_and_the_loss_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    result = command_line.run_flow(lost(), {}, None, lambda: "stopped", finished=lambda: {"success": 1.0})
    assert result == {"success": 1.0}
    assert capsys.readouterr().err.endswith("does not answer: refused\n")


@pytest.mark.usefixtures("alone")
def test_without_a_result_the_loss_is_an_error() -> None:
    with pytest.raises(ServerLostError, match=r"at http://127\.0\.0\.1:4200/api does not answer: refused"):
        command_line.run_flow(lost(), {}, None, lambda: "stopped")


@pytest.mark.usefixtures("alone")
def test_the_loss_of_another_server_is_not_that_of_prefect() -> None:
    with pytest.raises(httpx.ConnectError):
        command_line.run_flow(lost("http://127.0.0.1:8000/v1"), {}, None, lambda: "stopped", finished=lambda: {"a": 1})

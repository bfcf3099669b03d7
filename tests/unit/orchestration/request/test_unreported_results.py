"""A flow that has written its result, but cannot report its end to Prefect."""

from typing import Any

import httpx
import pytest

from embodyflow.errors import ServerLostError
from embodyflow.orchestration.request import command_line


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect() -> None:
        pass

    monkeypatch.setattr(command_line, "connect", connect)
    monkeypatch.setattr(command_line, "start_flow_watcher", lambda: None)
    monkeypatch.setattr(command_line.gc, "freeze", lambda: None)


async def lost() -> dict[str, Any]:
    raise httpx.ConnectError("refused")


@pytest.mark.usefixtures("alone")
def test_a_written_result_is_returned_and_the_loss_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    flow: Any = lost
    assert command_line.run_flow(flow, {}, None, lambda: "stopped", finished=lambda: {"success": 1.0}) == {"success": 1}
    assert capsys.readouterr().err.endswith("does not answer: refused\n")


@pytest.mark.usefixtures("alone")
def test_without_a_result_the_loss_is_an_error() -> None:
    flow: Any = lost
    with pytest.raises(ServerLostError, match="does not answer: refused"):
        command_line.run_flow(flow, {}, None, lambda: "stopped")

"""Heartbeats of subflow runs, from their start to their end."""

import asyncio
from uuid import uuid4

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from embodyflow.orchestration.server import subflow_heartbeats as module
from embodyflow.orchestration.server.settings import SUBFLOW_HEARTBEAT


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    sent: list[tuple[str, str]] = []
    monkeypatch.setattr(module, "emit_event", lambda event, resource: sent.append((event, *resource.values())))
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.005)
    return sent


def test_an_open_run_sends_heartbeats_and_a_closed_one_none(sent: list[tuple[str, str]]) -> None:
    run = uuid4()

    async def work() -> int:
        beats = module.start_heartbeats(run)
        await asyncio.sleep(0.1)
        beats.cancel()
        before = len(sent)
        await asyncio.sleep(0.05)
        return before

    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        before = asyncio.run(work())
    assert set(sent) == {(SUBFLOW_HEARTBEAT, f"prefect.flow-run.{run}")}
    assert len(sent) == before > 2


def test_a_temporary_server_of_this_process_gets_none(sent: list[tuple[str, str]]) -> None:
    async def work() -> None:
        await module.start_heartbeats(uuid4())

    with temporary_settings({PREFECT_API_URL: None}):
        asyncio.run(asyncio.wait_for(work(), 5.0))
    assert sent == []

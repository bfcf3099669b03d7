"""Refusals of the Prefect server do not fail the training."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from prefect import flow
from prefect.exceptions import ObjectNotFound

from embodyflow.orchestration.server import iteration_runs
from embodyflow.orchestration.server.iteration_runs import IterationRuns


@flow(persist_result=False)
async def iteration(index: int) -> dict[str, float]:
    return {"index": index}


class Client:
    """A server that refuses to create runs, or to close them."""

    def __init__(self, creating: Exception | None, closing: Exception | None) -> None:
        self._creating, self._closing = creating, closing
        self.asked: list[str] = []

    async def create_task_run(self, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(id=uuid4())

    async def create_flow(self, _: Any) -> UUID:
        return uuid4()

    async def request(self, *_: Any, json: dict[str, Any]) -> httpx.Response:
        self.asked.append("create")
        if self._creating is not None:
            raise self._creating
        return httpx.Response(201, json=json)

    async def set_task_run_state(self, *_: Any) -> None:
        self.asked.append("cancel its task run")

    async def set_flow_run_state(self, *_: Any) -> None:
        self.asked.append("close")
        if self._closing is not None:
            raise self._closing


def refusal(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://server/api/flow_runs/run/set_state")
    return httpx.HTTPStatusError("refused", request=request, response=httpx.Response(status, request=request))


@pytest.mark.parametrize(
    ("creating", "closing", "asked"),
    [
        (None, ObjectNotFound(refusal(404)), ["create", "close"]),
        (None, refusal(409), ["create", "close"]),
        (refusal(409), None, ["create", "create", "cancel its task run"]),
    ],
    ids=["deleted", "refused", "never created"],
)
def test_a_flow_run_that_cannot_be_closed_fails_nothing(
    creating: Exception | None,
    closing: Exception | None,
    asked: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    parent = SimpleNamespace(get=lambda: SimpleNamespace(flow_run=None))
    monkeypatch.setattr(iteration_runs, "FlowRunContext", parent)
    client: Any = Client(creating, closing)

    async def open_and_finish() -> None:
        runs = IterationRuns(iteration, client)
        runs.open(1)
        await runs.finish()

    with caplog.at_level(logging.WARNING, iteration_runs.__name__):
        asyncio.run(open_and_finish())
    assert client.asked == asked
    assert ("refuses to close the run iteration-1" in caplog.text) == (closing is not None)

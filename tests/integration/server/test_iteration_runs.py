"""Iterations on a real Prefect server that is temporarily unreachable or refuses requests."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, FlowRunFilterParentFlowRunId
from prefect.client.schemas.objects import FlowRun, StateType, TaskRun
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from servers import prefect_server

from embodyflow.orchestration.server import iteration_runs as module
from embodyflow.orchestration.server.iteration_runs import Metrics

pytestmark = pytest.mark.integration

DOWN_FROM, UP_FROM, LAST = 2, 4, 20
OPEN_TIMEOUT = 1.0


class Faulty(httpx.AsyncHTTPTransport):
    """A transport to the server that fails in some iterations."""

    is_failing = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.is_failing:
            return await self.fail(request)
        return await super().handle_async_request(request)

    async def fail(self, request: httpx.Request) -> httpx.Response:
        raise NotImplementedError


class Locked(Faulty):
    async def fail(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(503, json={"exception_message": "Service Unavailable"}, request=request)


class Unreachable(Faulty):
    async def fail(self, request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)


class Slow(Faulty):
    async def fail(self, request: httpx.Request) -> httpx.Response:
        self.is_failing = False  # once is enough
        await asyncio.sleep(1.5 * OPEN_TIMEOUT)
        return await self.handle_async_request(request)


class FailsBetweenRequests(Unreachable):
    """Becomes unreachable after the stand-in of an iteration is created and before its flow run is."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.is_failing = request.url.path.endswith("/flow_runs/")
        return await super().handle_async_request(request)


class LosesAnswer(Faulty):
    """Executes one request but loses its answer."""

    has_lost = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await super().handle_async_request(request)
        if request.url.path.endswith("/flow_runs/") and not self.has_lost:
            self.has_lost = True
            raise httpx.ReadTimeout("too late", request=request)
        return answer


class Broken(Faulty):
    async def fail(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(500, json={"exception_message": "a bug"}, request=request)


class FlowDeleted(Faulty):
    async def fail(self, request: httpx.Request) -> httpx.Response:
        self.is_failing = False
        async with get_client() as client:
            await client.delete_flow((await client.read_flow_by_name("iteration")).id)
        return await self.handle_async_request(request)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("prefect")
    with prefect_server(folder) as url:
        yield url


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch, server: str) -> Iterator[None]:
    """Use short timeouts, and this server."""
    for name, seconds in {"OPEN_TIMEOUT": OPEN_TIMEOUT, "RETRY": 0.1, "MAX_BACKOFF": 0.1}.items():
        monkeypatch.setattr(module, f"{name}_SECONDS", seconds)
    with temporary_settings({PREFECT_API_URL: server, PREFECT_CLIENT_MAX_RETRIES: 1}):
        yield


def use_transport(transport: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the client of iteration runs use the transport."""
    settings: dict[str, Any] = {"transport": transport}
    plain = module.get_client
    monkeypatch.setattr(module, "get_client", lambda httpx_settings: plain(httpx_settings=settings | httpx_settings))


async def run_through(transport: Faulty, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Metrics], list[FlowRun]]:
    """Run the iterations, with failures in 2 and 3; return their results, and their flow runs sorted by name."""

    @flow(name="iteration")
    async def iteration(index: int) -> Metrics:
        transport.is_failing = DOWN_FROM <= index < UP_FROM
        await asyncio.sleep(0.2)
        return {"index": float(index)}

    @flow(name="training")
    async def training() -> tuple[list[Metrics], Any]:
        async with module.iteration_runs(iteration) as runs:
            results = []
            for index in range(1, LAST + 1):
                results.append(await runs.run(index))
                if index < LAST:
                    runs.open(index + 1)
        return results, FlowRunContext.get().flow_run.id

    use_transport(transport, monkeypatch)
    results, parent = await training()
    async with get_client() as client:
        of_parent = FlowRunFilterParentFlowRunId(any_=[parent])
        children = await client.read_flow_runs(flow_run_filter=FlowRunFilter(parent_flow_run_id=of_parent))
    return results, sorted(children, key=lambda run: run.name)


@pytest.mark.parametrize("transport", [Locked, Unreachable, Slow])
def test_an_outage_delays_nothing(
    transport: type[Faulty], short_timeouts: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    results, children = asyncio.run(run_through(transport(), monkeypatch))

    assert results == [{"index": float(index)} for index in range(1, LAST + 1)]
    assert "the Prefect server does not answer: iteration 3 proceeds without a flow run" in caplog.text
    assert f"iteration {LAST} proceeds without a flow run" not in caplog.text
    states = {run.name: run.state_type for run in children}
    assert {"iteration-1", "iteration-2", f"iteration-{LAST}"} <= states.keys()
    assert set(states.values()) == {StateType.COMPLETED}


async def recorded(
    iterate: Callable[[module.IterationRuns], Awaitable[None]],
) -> tuple[dict[str, TaskRun], list[FlowRun]]:
    """Run iterations; return their stand-ins in the parent, by name, and their flow runs."""

    @flow(name="iteration")
    async def iteration(index: int) -> Metrics:
        return {"index": float(index)}

    ids: list[UUID] = []

    @flow(name="training")
    async def training() -> None:
        ids.append(FlowRunContext.get().flow_run.id)
        async with module.iteration_runs(iteration) as runs:
            await iterate(runs)

    await training()
    async with get_client() as client:
        of_parent = FlowRunFilterParentFlowRunId(any_=ids)
        children = await client.read_flow_runs(flow_run_filter=FlowRunFilter(parent_flow_run_id=of_parent))
        parent = FlowRunFilter(id=FlowRunFilterId(any_=ids))
        stand_ins = await client.read_task_runs(flow_run_filter=parent)
    return {run.name: run for run in stand_ins}, children


def test_an_announced_iteration_that_never_starts_is_cancelled(short_timeouts: None) -> None:
    async def iterate(runs: module.IterationRuns) -> None:
        runs.announce(1)
        await runs.run(1)
        runs.announce(2)

    stand_ins, [child] = asyncio.run(recorded(iterate))
    assert {name: run.state_type for name, run in stand_ins.items()} == {
        "iteration-1": StateType.COMPLETED,
        "iteration-2": StateType.CANCELLED,
    }
    assert (child.name, child.parent_task_run_id) == ("iteration-1", stand_ins["iteration-1"].id)
    assert stand_ins["iteration-1"].state.state_details.child_flow_run_id == child.id


def test_an_iteration_that_is_announced_twice_is_not_cancelled(short_timeouts: None) -> None:
    async def iterate(runs: module.IterationRuns) -> None:
        for _ in range(2):  # the iteration before is retried because its commit failed
            runs.announce(1)
            runs.open(1)
            await asyncio.sleep(0.5)
        await runs.run(1)

    stand_ins, [child] = asyncio.run(recorded(iterate))
    assert {name: run.state_type for name, run in stand_ins.items()} == {"iteration-1": StateType.COMPLETED}
    assert child.state_type is StateType.COMPLETED


def test_an_iteration_that_could_not_be_announced_gets_a_flow_run_later(
    short_timeouts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = Unreachable()
    use_transport(transport, monkeypatch)

    async def iterate(runs: module.IterationRuns) -> None:
        transport.is_failing = True
        runs.announce(1)
        await asyncio.wait([runs._announced[1]])
        transport.is_failing = False
        await runs.run(1)

    _, children = asyncio.run(recorded(iterate))
    assert [child.state_type for child in children] == [StateType.COMPLETED]


def test_a_flow_that_is_deleted_in_the_ui_is_recreated(short_timeouts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    results, children = asyncio.run(run_through(FlowDeleted(), monkeypatch))

    assert results == [{"index": float(index)} for index in range(1, LAST + 1)]
    states = {run.name: run.state_type for run in children}
    assert set(states) >= {f"iteration-{index}" for index in range(UP_FROM + 1, LAST + 1)}
    assert set(states.values()) == {StateType.COMPLETED}


def test_a_stand_in_without_flow_run_gets_the_iterations_final_state(
    short_timeouts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_transport(FailsBetweenRequests(), monkeypatch)

    async def iterate(runs: module.IterationRuns) -> None:
        runs.open(1)
        await asyncio.wait([runs._opened[1]])
        await runs.run(1)

    stand_ins, children = asyncio.run(recorded(iterate))
    assert {name: run.state_type for name, run in stand_ins.items()} == {"iteration-1": StateType.COMPLETED}
    assert children == []


def test_a_repeated_request_creates_one_flow_run(short_timeouts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    use_transport(LosesAnswer(), monkeypatch)
    monkeypatch.setattr(module, "OPEN_TIMEOUT_SECONDS", 60.0)  # a busy server may answer the second request late

    async def iterate(runs: module.IterationRuns) -> None:
        await runs.run(1)

    _, children = asyncio.run(recorded(iterate))
    assert [child.state_type for child in children] == [StateType.COMPLETED]


def test_a_stand_in_that_is_deleted_in_the_ui_is_recreated(short_timeouts: None) -> None:
    async def iterate(runs: module.IterationRuns) -> None:
        runs.announce(1)
        async with get_client() as client:
            await client.delete_task_run((await runs._announced[1]).id)
        await runs.run(1)

    stand_ins, [child] = asyncio.run(recorded(iterate))
    assert child.parent_task_run_id == stand_ins["iteration-1"].id
    assert child.state_type is StateType.COMPLETED


def test_a_run_that_is_deleted_in_the_ui_continues(short_timeouts: None, caplog: pytest.LogCaptureFixture) -> None:
    results: list[Metrics] = []

    async def iterate(runs: module.IterationRuns) -> None:
        async with get_client() as client:
            await client.delete_flow_run(runs._parent.flow_run.id)
        results.extend([await runs.run(1), await runs.run(2)])

    with pytest.raises(ObjectNotFound):  # from Prefect, which cannot set the flow's final state
        asyncio.run(recorded(iterate))
    assert results == [{"index": 1.0}, {"index": 2.0}]
    assert "the parent flow run was deleted: iteration 2 proceeds without a flow run" in caplog.text


def test_abandoned_runs_of_a_killed_attempt_are_closed_by_the_next(short_timeouts: None) -> None:
    async def iterate(runs: module.IterationRuns) -> None:
        runs.open(1)
        killed = (await runs._opened.pop(1)).id
        runs._parent.flow_run.run_count += 1
        async with module.iteration_runs(runs._flow) as again:
            await again.run(1)
        async with get_client() as client:
            assert (await client.read_flow_run(killed)).state_type is StateType.CRASHED

    stand_ins, children = asyncio.run(recorded(iterate))
    assert {child.state_type for child in children} == {StateType.COMPLETED, StateType.CRASHED}
    assert stand_ins["iteration-1"].state_type is StateType.COMPLETED


def test_a_server_error_is_not_taken_for_an_outage(short_timeouts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(httpx.HTTPStatusError, match="500"):
        asyncio.run(run_through(Broken(), monkeypatch))


def test_the_backoff_after_a_locked_database() -> None:
    request = httpx.Request("POST", "http://prefect/api")
    waits = []
    for _ in range(6):
        response = httpx.Response(503, request=request)
        asyncio.run(module._retry_locked_database_soon(response))
        waits.append(float(response.headers["Retry-After"]))
    assert waits == pytest.approx([0.05, 0.2, 0.8, 3.2, 3.2, 3.2])

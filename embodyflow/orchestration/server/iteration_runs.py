"""The flow runs of iterations, opened and closed in the background.

Prefect's engine opens and closes a subflow run by eight sequential requests; with seven empty task runs that is "plain
Prefect" in ``benchmarks/orchestration/orchestration.py``. This module sends three, and never blocks the iteration. A
subflow run has a *stand-in*, the task run that represents it in its parent. The stand-in of the next iteration is
created while the current one runs its nodes, the flow run while the current one commits, and the current flow run is
closed while the next one runs.

An unavailable server delays nothing: iterations proceed without flow runs, and their states are reported once the
server is back.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from uuid import UUID, uuid4

import httpx
from prefect import Flow, Task, runtime
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import FlowRunCreate
from prefect.client.schemas.objects import FlowRun, State, TaskRun
from prefect.context import FlowRunContext, TagsContext
from prefect.exceptions import PrefectException
from prefect.results import get_result_store
from prefect.states import (
    Cancelled,
    Completed,
    Pending,
    Running,
    exception_to_crashed_state,
    exception_to_failed_state,
    to_state_create,
)

from embodyflow.orchestration.server.abandoned_runs import close_abandoned_runs
from embodyflow.orchestration.server.availability import FINAL_TIMEOUT_SECONDS, RETRY_SECONDS, is_unavailable
from embodyflow.orchestration.server.subflow_heartbeats import start_heartbeats

Metrics = dict[str, float]
Run = TypeVar("Run", FlowRun, TaskRun)

_logger = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS = 0.05
MAX_BACKOFF_SECONDS = 3.2

OPEN_TIMEOUT_SECONDS = 5.0
"""How long an iteration waits for its flow run before it proceeds without one."""

_REQUEST_ERRORS = (httpx.HTTPError, PrefectException)
"""Errors of Prefect's client if the server is unavailable or refuses. ``ObjectNotFound`` is not an ``HTTPError``."""


async def _retry_locked_database_soon(response: httpx.Response) -> None:
    """Make Prefect's client retry after a locked database with a backoff of 0.05 s, 0.2 s, 0.8 s, then 3.2 s.

    SQLite immediately refuses a transaction that started to read before another writer finished. The server answers
    503 without ``Retry-After``, and the client would wait 2 s, as long as an iteration. Requests are sequential, so
    all later ones wait too.
    """
    if response.status_code == httpx.codes.SERVICE_UNAVAILABLE and "Retry-After" not in response.headers:
        tries = response.request.extensions.get("tries", 0)
        response.request.extensions["tries"] = tries + 1
        response.headers["Retry-After"] = str(min(FIRST_BACKOFF_SECONDS * 4**tries, MAX_BACKOFF_SECONDS))


class IterationRuns:
    """Runs a flow once per iteration, each time as a subflow run of the current flow run.

    Args:
        flow: Flow of one iteration. Its only argument is the iteration's index; its runs are named
            ``iteration-<index>``.
        client: Client of the Prefect server.

    Raises:
        RuntimeError: There is no current flow run.
    """

    def __init__(self, flow: Flow[[int], Coroutine[Any, Any, Metrics]], client: PrefectClient) -> None:
        parent = FlowRunContext.get()
        if parent is None:
            raise RuntimeError("iterations need a current flow run")
        self._flow, self._parent, self._client = flow, parent, client
        self._opened: dict[int, asyncio.Task[FlowRun]] = {}
        self._announced: dict[int, asyncio.Task[TaskRun]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._heartbeats: dict[UUID, asyncio.Task[None]] = {}
        self._without_run: list[tuple[int, asyncio.Task[FlowRun], State[Any]]] = []
        self._flow_id: UUID | None = None
        self._is_down = False  # if True, iterations do not wait for the server
        # One request at a time: of two at once one finds SQLite locked, and the client then sleeps.
        self._lock = asyncio.Lock()

    def open(self, index: int) -> None:
        """Start to create the iteration's flow run, unless it exists."""
        if index not in self._opened:
            self._opened[index] = asyncio.create_task(self._create(index))

    def announce(self, index: int) -> None:
        """Start to create the iteration's stand-in, unless it or the flow run exists.

        The stand-in is pending until the flow run exists. An iteration that is retried announces the next one again,
        whose flow run may exist by then.
        """
        if index not in self._opened:
            self._announce(index)

    def _announce(self, index: int) -> None:
        known = self._announced.get(index)
        if known is None or (known.done() and known.exception()):  # try again: the server may be back
            self._announced[index] = asyncio.create_task(self._create_stand_in(index))

    async def run(self, index: int) -> Metrics:
        """Run the iteration.

        Raises:
            Exception: Any error of the flow's function.
        """
        self.open(index)
        await asyncio.wait([self._opened[index]], timeout=0.0 if self._is_down else OPEN_TIMEOUT_SECONDS)
        opened = self._opened.pop(index)
        if not opened.done() or is_unavailable(opened.exception()):
            self._is_down = True
            _logger.warning("the Prefect server does not answer: iteration %d proceeds without a flow run", index)
            return await self._run_without_flow_run(index, opened)
        if _is_owner_deleted(opened.exception()):
            _logger.warning("the parent flow run was deleted: iteration %d proceeds without a flow run", index)
            return await self._run_without_flow_run(index, opened)
        flow_run = opened.result()
        with FlowRunContext(
            flow=self._flow,
            flow_run=flow_run,
            parameters={"index": index},
            client=self._parent.client,
            task_runner=self._parent.task_runner,
            result_store=await get_result_store().aupdate_for_flow(self._flow),
            persist_result=False,
            flow_run_suspension_request=self._parent.flow_run_suspension_request,
        ):
            try:
                metrics = await self._flow.fn(index)
            except Exception as error:
                self._close_in_background(flow_run, await exception_to_failed_state(error))
                raise
            except BaseException as error:  # cancelled or terminated
                self._close_in_background(flow_run, await exception_to_crashed_state(error))
                raise
        self._close_in_background(flow_run, Completed())
        return metrics

    async def finish(self) -> None:
        """Close all flow runs; give up after a minute if the server does not answer.

        Runs and stand-ins of iterations that never started are cancelled. The stand-in of an iteration without a flow
        run gets the iteration's final state.
        """
        never_started: State[Any] = Cancelled(message="the run ended before this iteration")
        ends = {index: state for index, _, state in self._without_run}
        opened = [(opening, never_started) for opening in self._opened.values()]
        try:
            async with asyncio.timeout(FINAL_TIMEOUT_SECONDS):
                for opening, state in [*opened, *((opening, state) for _, opening, state in self._without_run)]:
                    if flow_run := await _created(opening):
                        await self._close(flow_run, self._client.set_flow_run_state, state)
                for index, announced in self._announced.items():
                    if stand_in := await _created(announced):
                        await self._close(stand_in, self._client.set_task_run_state, ends.get(index, never_started))
                await asyncio.gather(*self._closing)
        except TimeoutError:
            _logger.warning("the Prefect server does not answer: the final states of some iterations are not reported")
        self._announced.clear()
        self._opened.clear()

    async def _run_without_flow_run(self, index: int, opened: asyncio.Task[FlowRun]) -> Metrics:
        """Run the iteration within the parent's flow run. If its own flow run is still created, it is closed later."""
        state: State[Any] = Completed(message="ran while the server was unavailable")
        try:
            return await self._flow.fn(index)
        except Exception as error:
            state = await exception_to_failed_state(error)
            raise
        except BaseException as error:
            state = await exception_to_crashed_state(error)
            raise
        finally:
            self._without_run.append((index, opened, state))

    async def _create_stand_in(self, index: int) -> TaskRun:
        """Create the iteration's stand-in as Prefect's engine does."""
        stand_in: Task[..., Any] = Task(name=self._flow.name, fn=self._flow.fn, version=self._flow.version)
        async with self._lock:
            return await self._client.create_task_run(
                task=stand_in,
                name=f"{self._flow.name}-{index}",
                flow_run_id=self._parent.flow_run.id if self._parent.flow_run else None,
                dynamic_key=str(index),
                state=Pending(),
            )

    async def _create(self, index: int) -> FlowRun:
        try:
            flow_run = await self._create_flow_run(index)
        except httpx.HTTPStatusError as error:
            if not _is_owner_deleted(error):
                raise
            self._flow_id = None
            self._announced.pop(index, None)
            flow_run = await self._create_flow_run(index)
        self._announced.pop(index, None)
        self._is_down = False
        return flow_run

    async def _create_flow_run(self, index: int) -> FlowRun:
        """Create the flow run as Prefect's client does, but request the flow's id only once."""
        self._announce(index)
        stand_in = await self._announced[index]
        async with self._lock:
            if self._flow_id is None:
                self._flow_id = await self._client.create_flow(self._flow)
            wanted = FlowRunCreate(
                flow_id=self._flow_id,
                flow_version=self._flow.version,
                name=f"{self._flow.name}-{index}",
                parameters={"index": index},
                tags=list(TagsContext.get().current_tags),
                parent_task_run_id=stand_in.id,
                idempotency_key=uuid4().hex,  # the client repeats the request if the answer is late or lost
                state=to_state_create(Running()),
            )
            body = wanted.model_dump(mode="json", exclude_unset=True)
            answer = await self._client.request("POST", "/flow_runs/", json=body)
        flow_run = FlowRun.model_validate(answer.json())
        self._heartbeats[flow_run.id] = start_heartbeats(flow_run.id)
        return flow_run

    def _close_in_background(self, flow_run: FlowRun, state: State[Any]) -> None:
        self._closing = {closing for closing in self._closing if not closing.done() or closing.exception()}
        closing = self._close(flow_run, self._client.set_flow_run_state, state)
        self._closing.add(asyncio.create_task(closing))

    async def _close(
        self, ended: FlowRun | TaskRun, set_state: Callable[[UUID, State[Any]], Awaitable[Any]], state: State[Any]
    ) -> None:
        """Set the final state of a run; retry until the server answers. A refusal, as for a deleted run, is logged."""
        if heartbeats := self._heartbeats.pop(ended.id, None):
            heartbeats.cancel()
        while True:
            try:
                async with self._lock:
                    await set_state(ended.id, state)
                self._is_down = False
                return
            except _REQUEST_ERRORS as error:
                if not is_unavailable(error):
                    _logger.warning("the Prefect server refuses to close the run %s", ended.name, exc_info=True)
                    return
            await asyncio.sleep(RETRY_SECONDS)


def _is_owner_deleted(error: BaseException | None) -> bool:
    """Return True if the server refused a flow run because its flow or parent was deleted, as in the UI."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code == httpx.codes.CONFLICT


async def _created(creating: asyncio.Task[Run]) -> Run | None:
    """Wait until a run is created and return it, or ``None`` if its creation failed."""
    await asyncio.wait([creating])
    return None if isinstance(creating.exception(), _REQUEST_ERRORS) else creating.result()


@asynccontextmanager
async def iteration_runs(
    flow: Flow[[int], Coroutine[Any, Any, Metrics]],
) -> AsyncIterator[IterationRuns]:
    """Yield the iterations' runs, and close them when the block exits."""
    async with get_client(httpx_settings={"event_hooks": {"response": [_retry_locked_database_soon]}}) as client:
        runs = IterationRuns(flow, client)
        if runtime.flow_run.run_count > 1:
            await close_abandoned_runs(client, UUID(runtime.flow_run.id))  # those of the previous attempt
        try:
            yield runs
        finally:
            await runs.finish()

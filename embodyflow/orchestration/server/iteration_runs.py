"""The flow runs of iterations, opened and closed beside the work.

Prefect's own engine opens and closes a subflow run by eight requests, one after the other; with seven empty task runs
that is "plain Prefect" in ``benchmarks/orchestration.py``. Here it takes three, beside the work: what stands for the
next iteration in its parent is created while this one works, its run while this one commits, and this one's run is
closed while the next one works.

A server that does not answer holds nothing up: iterations go on without runs of their own, and what could not be told
is told when it is back.
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

from embodyflow.orchestration.server.absence import FAREWELL_SECONDS, PAUSE_SECONDS, means_away
from embodyflow.orchestration.server.left_running import close_left

Metrics = dict[str, float]
Run = TypeVar("Run", FlowRun, TaskRun)

_logger = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.05
LONGEST_RETRY_SECONDS = 3.2

PATIENCE_SECONDS = 5.0
"""How long an iteration waits for its run before it goes on without."""

_NOT_DONE = (httpx.HTTPError, PrefectException)
"""What Prefect's client raises where the server is away or refuses: ``ObjectNotFound`` is no ``HTTPError``."""


async def _ask_again_soon(response: httpx.Response) -> None:
    """Have Prefect's client repeat what met a locked database after 0.05 s, then 0.2 s, 0.8 s, and 3.2 s at most.

    SQLite refuses at once what began to read before another writer was done. The server answers 503 and does not say
    when to come back; the client would wait 2 s, as long as an iteration. Requests take turns: all later ones wait as
    long as this one does.
    """
    if response.status_code == httpx.codes.SERVICE_UNAVAILABLE and "Retry-After" not in response.headers:
        tries = response.request.extensions.get("tries", 0)
        response.request.extensions["tries"] = tries + 1
        response.headers["Retry-After"] = str(min(FIRST_RETRY_SECONDS * 4**tries, LONGEST_RETRY_SECONDS))


class IterationRuns:
    """Runs a flow once per iteration, each as a subflow run of the flow run this is made in.

    Args:
        flow: to be run with the iteration's index as its only argument; its run is named ``iteration-<index>``.
        client: to tell the server by.

    Raises:
        RuntimeError: this is not within a flow run.
    """

    def __init__(self, flow: Flow[[int], Coroutine[Any, Any, Metrics]], client: PrefectClient) -> None:
        parent = FlowRunContext.get()
        if parent is None:
            raise RuntimeError("iterations run within a flow run")
        self._flow, self._parent, self._client = flow, parent, client
        self._opened: dict[int, asyncio.Task[FlowRun]] = {}
        self._announced: dict[int, asyncio.Task[TaskRun]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._unseen: list[tuple[int, asyncio.Task[FlowRun], State[Any]]] = []
        self._flow_id: UUID | None = None
        self._is_away = False  # until it answers again nobody waits for it
        # One request at a time: two at once find SQLite locked, and the client then sleeps for two seconds.
        self._turn = asyncio.Lock()

    def open(self, index: int) -> None:
        """Begin to create the iteration's run, unless that has been done."""
        if index not in self._opened:
            self._opened[index] = asyncio.create_task(self._create(index))

    def announce(self, index: int) -> None:
        """Begin to create the task run that stands for the iteration in its parent, unless that has been done.

        It is pending until the iteration's own run is there. An iteration that is done again announces the next one
        again, whose run may be there already.
        """
        if index not in self._opened:
            self._announce(index)

    def _announce(self, index: int) -> None:
        known = self._announced.get(index)
        if known is None or (known.done() and known.exception()):  # the server may be back by now
            self._announced[index] = asyncio.create_task(self._create_stand_in(index))

    async def run(self, index: int) -> Metrics:
        """Run the iteration.

        Raises:
            Exception: whatever the flow's function raised.
        """
        self.open(index)
        await asyncio.wait([self._opened[index]], timeout=0.0 if self._is_away else PATIENCE_SECONDS)
        opened = self._opened.pop(index)
        if not opened.done() or means_away(opened.exception()):
            self._is_away = True
            _logger.warning("the Prefect server does not answer: iteration %d has no run of its own", index)
            return await self._run_unseen(index, opened)
        if _means_deleted(opened.exception()):
            _logger.warning("the Prefect server knows this run no longer: iteration %d has none of its own", index)
            return await self._run_unseen(index, opened)
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
                self._close_beside(flow_run, await exception_to_failed_state(error))
                raise
            except BaseException as error:  # cancelled, or told to end
                self._close_beside(flow_run, await exception_to_crashed_state(error))
                raise
        self._close_beside(flow_run, Completed())
        return metrics

    async def finish(self) -> None:
        """Wait until every run is closed, or the server has not answered for two minutes.

        What was announced or opened and never begun is cancelled; what stands for an iteration whose own run did not
        come about ends as the iteration did.
        """
        never_begun: State[Any] = Cancelled(message="the run ended before this iteration")
        ends = {index: state for index, _, state in self._unseen}
        opened = [(opening, never_begun) for opening in self._opened.values()]
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                for opening, state in [*opened, *((opening, state) for _, opening, state in self._unseen)]:
                    if flow_run := await _created(opening):
                        await self._tell(flow_run, self._client.set_flow_run_state, state)
                for index, announced in self._announced.items():
                    if stand_in := await _created(announced):
                        await self._tell(stand_in, self._client.set_task_run_state, ends.get(index, never_begun))
                await asyncio.gather(*self._closing)
        except TimeoutError:
            _logger.warning("the Prefect server does not answer: it is not told how all iterations ended")
        self._announced.clear()
        self._opened.clear()

    async def _run_unseen(self, index: int, opened: asyncio.Task[FlowRun]) -> Metrics:
        """Run the iteration within the parent's run; should its own have come about after all, it is closed later."""
        state: State[Any] = Completed(message="it ran while the server was away")
        try:
            return await self._flow.fn(index)
        except Exception as error:
            state = await exception_to_failed_state(error)
            raise
        except BaseException as error:
            state = await exception_to_crashed_state(error)
            raise
        finally:
            self._unseen.append((index, opened, state))

    async def _create_stand_in(self, index: int) -> TaskRun:
        """Create the task run that stands for the subflow in its parent, as Prefect's engine makes it."""
        stand_in: Task[..., Any] = Task(name=self._flow.name, fn=self._flow.fn, version=self._flow.version)
        async with self._turn:
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
            if not _means_deleted(error):
                raise
            self._flow_id = None
            self._announced.pop(index, None)
            flow_run = await self._create_flow_run(index)
        self._announced.pop(index, None)
        self._is_away = False
        return flow_run

    async def _create_flow_run(self, index: int) -> FlowRun:
        """Do as Prefect's client does, which asks for the flow's id every time; here it is known."""
        self._announce(index)
        stand_in = await self._announced[index]
        async with self._turn:
            if self._flow_id is None:
                self._flow_id = await self._client.create_flow(self._flow)
            wanted = FlowRunCreate(
                flow_id=self._flow_id,
                flow_version=self._flow.version,
                name=f"{self._flow.name}-{index}",
                parameters={"index": index},
                tags=list(TagsContext.get().current_tags),
                parent_task_run_id=stand_in.id,
                idempotency_key=uuid4().hex,  # the client asks again where an answer is late or lost
                state=to_state_create(Running()),
            )
            body = wanted.model_dump(mode="json", exclude_unset=True)
            answer = await self._client.request("POST", "/flow_runs/", json=body)
        return FlowRun.model_validate(answer.json())

    def _close_beside(self, flow_run: FlowRun, state: State[Any]) -> None:
        self._closing = {closing for closing in self._closing if not closing.done() or closing.exception()}
        closing = self._tell(flow_run, self._client.set_flow_run_state, state)
        self._closing.add(asyncio.create_task(closing))

    async def _tell(
        self, ended: FlowRun | TaskRun, set_state: Callable[[UUID, State[Any]], Awaitable[Any]], state: State[Any]
    ) -> None:
        """Tell how a run ended; what the server refuses, as of one deleted in the UI, fails no training."""
        while True:
            try:
                async with self._turn:
                    await set_state(ended.id, state)
                self._is_away = False
                return
            except _NOT_DONE as error:
                if not means_away(error):
                    _logger.warning("the Prefect server refuses to close the run %s", ended.name, exc_info=True)
                    return
            await asyncio.sleep(PAUSE_SECONDS)


def _means_deleted(error: BaseException | None) -> bool:
    """Say whether the server has refused a run for what it belongs to: somebody has deleted that, as in the UI."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code == httpx.codes.CONFLICT


async def _created(creating: asyncio.Task[Run]) -> Run | None:
    """Wait until a run is created and return it; nothing where the server did not create it."""
    await asyncio.wait([creating])
    return None if isinstance(creating.exception(), _NOT_DONE) else creating.result()


@asynccontextmanager
async def iteration_runs(
    flow: Flow[[int], Coroutine[Any, Any, Metrics]],
) -> AsyncIterator[IterationRuns]:
    """Give the iterations' runs, and close them when the block is left."""
    async with get_client(httpx_settings={"event_hooks": {"response": [_ask_again_soon]}}) as client:
        runs = IterationRuns(flow, client)
        if runtime.flow_run.run_count > 1:
            await close_left(client, UUID(runtime.flow_run.id))  # by the attempt before
        try:
            yield runs
        finally:
            await runs.finish()

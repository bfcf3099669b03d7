"""The flow runs of a sweep's runs: subflow runs of the sweep's flow run that other processes carry out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import httpx
from prefect import Task
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import FlowRunCreate
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.states import Crashed, Pending, to_state_create

from embodyflow.orchestration.server.abandoned_runs import close_abandoned_runs
from embodyflow.orchestration.server.availability import RETRY_SECONDS, is_unavailable
from embodyflow.orchestration.server.subflow_heartbeats import start_heartbeats


class SubflowRuns:
    """Creates subflow runs of the current flow run for other processes, which report their states.

    Args:
        client: Client of the Prefect server.
    """

    def __init__(self, client: PrefectClient) -> None:
        context = FlowRunContext.get()
        if context is None or context.flow_run is None:
            raise RuntimeError("subflow runs need a current flow run")
        self._parent, self._client = context.flow_run, client

    @asynccontextmanager
    async def opened(self, flow: str, name: str, parameters: dict[str, Any]) -> AsyncIterator[UUID]:
        """Create a pending subflow run, yield its id, and close it at the end if its process did not.

        Args:
            flow: Name of the flow.
            name: Name of the flow run.
            parameters: Parameters of the flow.
        """
        run = await self._created(flow, name, parameters)
        beats = start_heartbeats(run.id)
        try:
            yield run.id
        finally:
            beats.cancel()
            await self._close(run)

    async def _created(self, flow: str, name: str, parameters: dict[str, Any]) -> FlowRun:
        """Create the run once the server answers."""
        attempt = f"{name}-{uuid4().hex[:8]}"
        while True:
            try:
                return await self._create(flow, name, parameters, attempt)
            except (httpx.HTTPError, PrefectException) as error:
                if not is_unavailable(error):
                    raise
                get_run_logger().warning(
                    "the Prefect server is unavailable, so %s waits: %s", name, error or repr(error)
                )
            await asyncio.sleep(RETRY_SECONDS)

    async def _create(self, flow: str, name: str, parameters: dict[str, Any], attempt: str) -> FlowRun:
        """Create the run and its *stand-in*, the task run that represents it in its parent, as the engine does."""
        stand_in: Task[..., Any] = Task(name=flow, fn=_stand_in)
        task_run = await self._client.create_task_run(
            task=stand_in, name=name, flow_run_id=self._parent.id, dynamic_key=attempt, state=Pending()
        )
        wanted = FlowRunCreate(
            flow_id=await self._client.create_flow_from_name(flow),
            name=name,
            parameters=parameters,
            parent_task_run_id=task_run.id,
            idempotency_key=attempt,  # the client repeats the request if the answer is late or lost
            state=to_state_create(Pending()),
        )
        answer = await self._client.request(
            "POST", "/flow_runs/", json=wanted.model_dump(mode="json", exclude_unset=True)
        )
        return FlowRun.model_validate(answer.json())

    async def _close(self, run: FlowRun) -> None:
        """Report the end of a process that did not. A failed request is only logged: the run itself has ended."""
        try:
            state = (await self._client.read_flow_run(run.id)).state
            if state is None or not state.is_final():
                ended: State[None] = Crashed(message="Its process ended without a report.")
                await self._client.set_flow_run_state(run.id, ended, force=True)
        except (httpx.HTTPError, PrefectException) as error:
            get_run_logger().warning("the end of %s is not reported: %s", run.name, error or repr(error))


def _stand_in() -> None:
    """Represent a subflow run in its parent; nobody calls it."""


@asynccontextmanager
async def open_subflow_runs() -> AsyncIterator[SubflowRuns]:
    """Yield the subflow runs of the current flow run; those of an earlier attempt that was killed are closed first."""
    async with get_client() as client:
        context = FlowRunContext.get()
        if context is not None and context.flow_run is not None and context.flow_run.run_count > 1:
            await close_abandoned_runs(client, context.flow_run.id)
        yield SubflowRuns(client)

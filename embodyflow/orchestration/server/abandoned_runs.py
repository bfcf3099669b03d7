"""Flow runs that a killed process leaves in state Running on the Prefect server."""

import logging
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.exceptions import PrefectException
from prefect.states import Crashed


async def close_abandoned_runs(client: PrefectClient, flow_run_id: UUID) -> None:
    """Mark the subflow runs of a flow run whose process was killed as crashed. A failed request is only logged."""
    of_parent = FlowRunFilterParentFlowRunId(any_=[flow_run_id])
    unfinished = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING]))
    chosen = FlowRunFilter(parent_flow_run_id=of_parent, state=unfinished)
    try:
        for abandoned in await client.read_flow_runs(flow_run_filter=chosen):
            await client.set_flow_run_state(abandoned.id, Crashed(message="its process was killed"))
    except (httpx.HTTPError, PrefectException):
        logging.getLogger(__name__).warning("runs of a killed process still show as running in the UI", exc_info=True)

"""What a killed process leaves running on the Prefect server."""

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


async def close_left(client: PrefectClient, flow_run_id: UUID) -> None:
    """Close the runs of iterations and the like within a flow run whose process was killed; refusals are logged."""
    of_parent = FlowRunFilterParentFlowRunId(any_=[flow_run_id])
    at_work = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING]))
    chosen = FlowRunFilter(parent_flow_run_id=of_parent, state=at_work)
    try:
        for left in await client.read_flow_runs(flow_run_filter=chosen):
            await client.set_flow_run_state(left.id, Crashed(message="its process was killed"))
    except (httpx.HTTPError, PrefectException):
        logging.getLogger(__name__).warning("what was killed goes on running in the UI", exc_info=True)

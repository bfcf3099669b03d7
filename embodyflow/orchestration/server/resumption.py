"""Automatic resumption of crashed flow runs from their last commit."""

from datetime import UTC, datetime
from typing import Any

from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, State
from prefect.logging.loggers import flow_run_logger
from prefect.states import AwaitingRetry

from embodyflow.orchestration.server.abandoned_runs import close_abandoned_runs
from embodyflow.orchestration.server.flow_run_states import was_cancelled
from embodyflow.orchestration.server.settings import MAX_RUNS


# Prefect passes these arguments by name.
async def resume_after_crash(flow: Any, flow_run: FlowRun, state: State[Any]) -> None:
    """Reschedule a crashed flow run; a Prefect worker then resumes it after its last commit.

    If the flow's process was killed, the hook runs in the Prefect worker. Runs without a deployment are not
    rescheduled, because no worker would pick them up. Nor are cancelled runs, and runs that have crashed
    ``MAX_RUNS`` times. The subflow runs of a deployment's run are closed in any case.
    """
    if flow_run.deployment_id is None:
        return
    async with get_client() as client:
        await close_abandoned_runs(client, flow_run.id)
        # flow_run is as the worker read it before this attempt, so its count is too low.
        run_count = (await client.read_flow_run(flow_run.id)).run_count
        if run_count >= MAX_RUNS:
            flow_run_logger(flow_run).error("crashed %d times and is not resumed", run_count)
            return
        if was_cancelled(await _state_types(client, flow_run)):
            return
        message = f"Crashed in run {run_count} of at most {MAX_RUNS}; resumes after its last commit."
        again: State[Any] = AwaitingRetry(scheduled_time=datetime.now(UTC), message=message)
        await client.set_flow_run_state(flow_run.id, again, force=True)


async def _state_types(client: PrefectClient, flow_run: FlowRun) -> list[str]:
    """Return the types of the flow run's states, newest first."""
    states = sorted(await client.read_flow_run_states(flow_run.id), key=lambda each: each.timestamp, reverse=True)
    return [state.type.value for state in states]

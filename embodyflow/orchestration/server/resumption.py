"""Flow runs that crash are run again, from their last commit."""

from datetime import UTC, datetime
from typing import Any

from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, State
from prefect.logging.loggers import flow_run_logger
from prefect.states import AwaitingRetry

from embodyflow.orchestration.server.flow_run_states import was_cancelled
from embodyflow.orchestration.server.left_running import close_left
from embodyflow.orchestration.server.settings import MAX_RUNS


# Prefect passes by these names.
async def resume_after_crash(flow: Any, flow_run: FlowRun, state: State[Any]) -> None:
    """Have the Prefect worker run a crashed flow run again; the flow then goes on after what it committed.

    The hook runs in the Prefect worker where the flow's own process was killed. A run of no deployment is left alone:
    nobody would pick it up. So is one that was cancelled. What ran within it is closed in any case.
    """
    if flow_run.deployment_id is None:
        return
    async with get_client() as client:
        await close_left(client, flow_run.id)
        # The Prefect worker knows it as it was before it ran this time.
        run_count = (await client.read_flow_run(flow_run.id)).run_count
        if run_count >= MAX_RUNS:
            flow_run_logger(flow_run).error("crashed %d times and is left", run_count)
            return
        if was_cancelled(await _kinds_of_states(client, flow_run)):
            return
        message = f"Crashed in its run {run_count} of at most {MAX_RUNS}; goes on after its last commit."
        again: State[Any] = AwaitingRetry(scheduled_time=datetime.now(UTC), message=message)
        await client.set_flow_run_state(flow_run.id, again, force=True)


async def _kinds_of_states(client: PrefectClient, flow_run: FlowRun) -> list[str]:
    """Return the types of the run's states, the newest first."""
    states = sorted(await client.read_flow_run_states(flow_run.id), key=lambda each: each.timestamp, reverse=True)
    return [state.type.value for state in states]

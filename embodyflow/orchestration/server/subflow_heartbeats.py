"""Heartbeats of subflow runs, such as iterations.

Prefect sends heartbeats of a deployment's flow run, by which the server notices that all its processes are gone
(:mod:`embodyflow.stack.heartbeats`). It sends none for the runs of iterations, which our own code opens, and those of
other subflows do not name the deployment. So subflows send an event of ours, which starts no other automation.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from prefect import runtime
from prefect.events import emit_event
from prefect.settings import get_current_settings

from embodyflow.orchestration.server.settings import HEARTBEAT_SECONDS, SUBFLOW_HEARTBEAT


def start_heartbeats(flow_run_id: UUID) -> asyncio.Task[None]:
    """Start to send heartbeats of a subflow run; cancel the task before the run is closed."""
    return asyncio.create_task(_send_heartbeats(flow_run_id))


@asynccontextmanager
async def subflow_heartbeats() -> AsyncIterator[None]:
    """Send heartbeats of the current subflow run while the block runs."""
    beats = start_heartbeats(UUID(runtime.flow_run.id))
    try:
        yield
    finally:
        beats.cancel()


async def _send_heartbeats(flow_run_id: UUID) -> None:
    while get_current_settings().api.url:  # Prefect's own temporary server ends with this process
        emit_event(SUBFLOW_HEARTBEAT, {"prefect.resource.id": f"prefect.flow-run.{flow_run_id}"})
        await asyncio.sleep(HEARTBEAT_SECONDS)

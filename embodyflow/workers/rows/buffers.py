"""The control plane's view of a run's buffers, one per Ray node."""

import asyncio
from typing import Any

import ray

from embodyflow.config.buffer import BufferConfig
from embodyflow.errors import WorkerLostError
from embodyflow.workers.lost_actors import ACTOR_GONE, first_line
from embodyflow.workers.rows.buffer import Buffer


def start_buffers(run_id: str, config: BufferConfig, known: dict[str, Any] | None = None) -> dict[str, Any]:
    """Start a buffer on every live Ray node without a ``known`` one; return all buffers by node id."""
    actor: Any = Buffer  # type checkers see the class, not the actor class that ``@ray.remote`` returns
    buffers = {}
    for node in ray.nodes():
        node_id = node["NodeID"]
        if known is not None and node_id in known and node["Alive"]:
            buffers[node_id] = known[node_id]
        elif node["Alive"]:
            pin = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
            name = f"{run_id}/buffer/{node_id[:8]}"
            buffers[node_id] = actor.options(name=name, scheduling_strategy=pin).remote(config)
    return buffers


async def call_buffers(buffers: dict[str, Any], method: str, *arguments: Any) -> list[Any]:
    """Call a method of every buffer; for a buffer that died, wait until Ray has restarted it.

    Raises:
        WorkerLostError: A buffer's Ray node is gone.
    """
    calls = [getattr(each, method).options(max_task_retries=-1).remote(*arguments) for each in buffers.values()]
    try:
        return await asyncio.gather(*calls)
    except ACTOR_GONE as error:
        raise WorkerLostError(f"a buffer is gone with its Ray node: {first_line(error)}") from error

"""The buffers of a run, one on every Ray node, as the control plane sees them."""

import asyncio
from typing import Any

import ray

from embodyflow.config.buffer import BufferConfig
from embodyflow.errors import WorkerLostError
from embodyflow.workers.buffer import Buffer
from embodyflow.workers.lost_actors import IS_GONE, first_line


def start_buffers(run_id: str, config: BufferConfig, known: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a buffer on every Ray node that is alive, by Ray node id; those ``known`` already are not started."""
    actor: Any = Buffer  # what ``@ray.remote`` made of the class; type checkers still see the class
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
    """Call a method of every buffer; one that died is waited for until it has been started again.

    Raises:
        WorkerLostError: a buffer's Ray node is gone.
    """
    calls = [getattr(each, method).options(max_task_retries=-1).remote(*arguments) for each in buffers.values()]
    try:
        return await asyncio.gather(*calls)
    except IS_GONE as error:
        raise WorkerLostError(f"a buffer is gone with its Ray node: {first_line(error)}") from error

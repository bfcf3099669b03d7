"""A run's buffers, one per Ray node: those that the control plane starts, and those that a worker finds."""

import asyncio
from collections.abc import Container, Iterator, Mapping
from typing import Any

import ray

from embodyflow.config.buffer import BufferConfig
from embodyflow.errors import WorkerLostError
from embodyflow.workers.lost_actors import ACTOR_GONE, first_line
from embodyflow.workers.ray_nodes import draining_nodes
from embodyflow.workers.rows.buffer import Buffer


def start_buffers(
    run_id: str, config: BufferConfig, known: Mapping[str, Any] | None = None, without: Container[str] = ()
) -> dict[str, Any]:
    """Start a buffer on every live Ray node that has none and is not drained; return all buffers by node id.

    Args:
        run_id: Id of the run.
        config: Folders and memory limit of each buffer.
        known: Buffers so far, by node id.
        without: Ids of nodes that are left out.
    """
    buffers, draining = dict(known or {}), draining_nodes()
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in without]
    return {
        node: buffers[node] if node in buffers else start_buffer(run_id, node, config)
        for node in nodes
        if node in buffers or node not in draining
    }


def start_buffer(run_id: str, node_id: str, config: BufferConfig) -> Any:
    """Start the buffer of a Ray node, or return it if it has one."""
    actor: Any = Buffer  # type checkers see the class, not the actor class that ``@ray.remote`` returns
    pin = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
    return actor.options(name=_name(run_id, node_id), scheduling_strategy=pin, get_if_exists=True).remote(config)


def _name(run_id: str, node_id: str) -> str:
    return f"{run_id}/buffer/{node_id[:8]}"


class FoundBuffers(Mapping[str, Any]):
    """A worker's buffers by node id. A buffer that the worker did not start with is found by its name in Ray.

    Args:
        run_id: Id of the run.
        known: Buffers when the worker started.
    """

    def __init__(self, run_id: str, known: Mapping[str, Any]) -> None:
        self._run_id, self._known = run_id, dict(known)

    def __getitem__(self, node_id: str) -> Any:
        """Return the buffer of a node.

        Raises:
            KeyError: The node has no buffer.
        """
        if node_id not in self._known:
            try:
                self._known[node_id] = ray.get_actor(_name(self._run_id, node_id))
            except ValueError as error:
                raise KeyError(node_id) from error
        return self._known[node_id]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the ids of the nodes whose buffers are known."""
        return iter(self._known)

    def __len__(self) -> int:
        """Return the number of buffers that are known."""
        return len(self._known)


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

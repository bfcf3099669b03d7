"""A worker group: N ranks that run a node together, each on its shard."""

import asyncio
from collections.abc import Sequence
from typing import Any

import ray

from embodyflow.config import RunConfig
from embodyflow.data.configuration import BufferConfig
from embodyflow.errors import ConfigError
from embodyflow.workers.buffer import Buffer
from embodyflow.workers.calls import NodeCall, NodeResult
from embodyflow.workers.worker import Worker

INTERRUPT_SECONDS = 5.0
"""How much longer than its limit a node is waited for: its ranks interrupt it and say so themselves."""


class WorkerGroup:
    """Handles of the ranks of one role.

    Args:
        role: for people and names: ``rollout``, ``trainer``.
        ranks: Ray handles, rank by rank.
        timeout: seconds a call may take.
    """

    def __init__(self, role: str, ranks: Sequence[Any], timeout: float) -> None:
        self.role = role
        self._ranks = list(ranks)
        self._timeout = timeout

    def __len__(self) -> int:
        """Return the number of ranks."""
        return len(self._ranks)

    async def run_node(self, calls: Sequence[NodeCall], *, beside_others: bool = False) -> list[NodeResult]:
        """Run one node on all ranks at the same time.

        Args:
            calls: one per rank.
            beside_others: the node needs no model, so other nodes may run on the ranks meanwhile.

        Raises:
            TimeoutError: it took longer than it may; the message names the node.
            Exception: whatever the node function raised on the first rank that failed.
        """
        method = "run_compute_node" if beside_others else "run_node"
        refs = [getattr(rank, method).remote(call) for rank, call in zip(self._ranks, calls, strict=True)]
        # The rank interrupts Python code itself; what hangs in native code is given up here.
        return await self._gather(refs, calls[0].node_id, calls[0].timeout + INTERRUPT_SECONDS)

    async def call(self, method: str, *args: Any) -> list[Any]:
        """Call ``method`` on every rank with the same arguments and return the answers in rank order."""
        refs = [getattr(rank, method).remote(*args) for rank in self._ranks]
        return await self._gather(refs, method, self._timeout)

    async def connect(self) -> None:
        """Form the ranks' torch.distributed group on a free port of rank 0's machine."""
        address = await asyncio.wait_for(self._ranks[0].free_address.remote(), self._timeout)
        await self.call("invoke", "connect", address)

    def kill(self) -> None:
        """End the ranks' processes now."""
        for rank in self._ranks:
            ray.kill(rank)

    async def _gather(self, refs: list[Any], what: str, seconds: float) -> list[Any]:
        # Prefect's own task time-out does not interrupt a wait on Ray, so the deadline is set here.
        try:
            async with asyncio.timeout(seconds) as deadline:
                return await asyncio.gather(*refs)
        except TimeoutError as error:
            if not deadline.expired():  # it is what a rank raised
                raise
            raise TimeoutError(f"{what} on the {self.role} group took longer than {seconds:g} s") from error


def _actor(remote_class: Any) -> Any:
    """Return what ``@ray.remote`` made of a class; type checkers still see the class."""
    return remote_class


def start_buffers(run_id: str, config: BufferConfig) -> dict[str, Any]:
    """Start one buffer on every Ray node that is alive; return them by Ray node id."""
    buffers = {}
    for node in ray.nodes():
        if node["Alive"]:
            pin = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            name = f"{run_id}/buffer/{node['NodeID'][:8]}"
            buffers[node["NodeID"]] = _actor(Buffer).options(name=name, scheduling_strategy=pin).remote(config)
    return buffers


async def start_group(
    role: str, engine: str, num_ranks: int, config: RunConfig, buffers: dict[str, Any]
) -> WorkerGroup:
    """Start ``num_ranks`` named workers and wait until their engines are built; where that fails none is left.

    The workers belong to the process that starts them: when it ends, however it ends, Ray ends them too.

    Raises:
        TimeoutError: the group was not ready within ``cluster.start_timeout``.
        Exception: whatever an engine raised while it was built.
    """
    cluster = config.cluster
    # No runtime_env: with one, Ray starts fresh processes instead of handing out those it has ready.
    options = {"num_cpus": cluster.cpus_per_worker, "num_gpus": cluster.gpus_per_worker}
    ranks = [
        _actor(Worker)
        .options(name=f"{config.run_id}/{role}/{rank}", **options)
        .remote(engine, config, rank, num_ranks, buffers)
        for rank in range(num_ranks)
    ]
    group = WorkerGroup(role, ranks, cluster.start_timeout)
    try:
        await group.call("ready")
    except BaseException:  # a cancelled start too
        group.kill()
        raise
    group._timeout = cluster.node_timeout
    return group


def check_resources(num_workers: int, config: RunConfig) -> None:
    """Refuse workers that would wait for ever for a place on the cluster.

    Raises:
        ConfigError: the cluster has not the CPUs or GPUs that so many workers ask for together.
    """
    have = ray.cluster_resources()
    for resource, each in (("CPU", config.cluster.cpus_per_worker), ("GPU", config.cluster.gpus_per_worker)):
        if num_workers * each > have.get(resource, 0.0):
            raise ConfigError(
                f"cluster.{resource.lower()}s_per_worker={each:g}: {num_workers} workers need "
                f"{num_workers * each:g} {resource}s, the Ray cluster has {have.get(resource, 0.0):g}"
            )

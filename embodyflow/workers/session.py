"""The worker groups of one run and what passes between them, as the control plane sees it: names and numbers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from embodyflow.config import RunConfig
from embodyflow.data.metrics import Metric, merge_metrics
from embodyflow.data.plan import ShardRef, for_tensor_parallel
from embodyflow.workers.buffers import call_buffers, start_buffers
from embodyflow.workers.calls import NodeCall, NodeReport, NodeResult, NodeWork
from embodyflow.workers.gpu_sharing import check_resources, placed
from embodyflow.workers.group import WorkerGroup
from embodyflow.workers.layout import Layout, join_facts, order_of, plan_inputs


class Session:
    """A run's worker groups.

    Args:
        config: of the run.
        groups: by name.
        buffers: Ray handle of each node's buffer.
    """

    def __init__(self, config: RunConfig, groups: dict[str, WorkerGroup], buffers: dict[str, Any]) -> None:
        self.config = config
        self.policy_version = 0
        self.weights_digest = ""
        self._groups, self._buffers = groups, buffers
        self._weights: dict[int, ShardRef] = {}  # of the versions that may still be acted with

    async def run_node(self, work: NodeWork, parents: Sequence[NodeReport] = ()) -> NodeReport:
        """Run a node on its group; its rows move there from the groups of its parents.

        Raises:
            ValueError: The parents pass on different numbers of rows.
            TimeoutError: The node exceeded its time limit.
            Exception: The node function raised it.
        """
        role = work.group or (parents[0].group if parents else "rollout")
        calls, balance = self._plan_calls(work, role, parents)
        answers = await self._groups[role].run_node(calls, beside_others=not work.needs_model)
        return _report(work, role, calls, answers, balance)

    def _plan_calls(
        self, work: NodeWork, role: str, parents: Sequence[NodeReport]
    ) -> tuple[list[NodeCall], dict[str, Metric]]:
        """Return the call of each rank, and metrics of how the rows are spread over them."""
        version, weights = self._weights_for(work)
        num_ranks, per_copy = len(self._groups[role]), self._groups[role].ranks_per_copy
        shares, balance = plan_inputs(work.node_id, work.layout, role, num_ranks // per_copy, parents)
        inputs = [for_tensor_parallel(parts, per_copy) for parts in shares]
        calls = [
            NodeCall(
                work,
                seed=self.config.seed,
                parents=tuple(ranks[rank] for ranks in inputs),
                passes_rows_on=rank % per_copy == 0,
                # A node without a model runs beside others, so it must not swap weights under them.
                weights=weights if role == "rollout" and work.needs_model else None,
                policy_version=version,
                # Only the trainer has hashes of its weights, and only nodes with its model can change them.
                checks_weights=work.only_forward_compute and work.needs_model and role == "trainer",
                timeout=work.timeout or self.config.cluster.node_timeout,
            )
            for rank in range(num_ranks)
        ]
        return calls, balance

    def _weights_for(self, work: NodeWork) -> tuple[int, ShardRef | None]:
        """Return the version of the policy that a node acts with, and its weights if they are published.

        Raises:
            RuntimeError: The node asks for a version whose weights are gone.
        """
        version = self.policy_version if work.policy_version is None else work.policy_version
        weights = self._weights.get(version)
        if weights is None and work.policy_version is not None:  # it would act with any weights the workers have
            raise RuntimeError(f"node {work.node_id}: the weights of version {version} are no longer kept")
        return version, weights

    async def recall(self, work: NodeWork, kept: NodeReport) -> NodeReport:
        """Bring back the rows of a node that an earlier process ran, from the folder they were kept in.

        Args:
            work: the node.
            kept: its report as far as it was kept; its shards are not where it says.

        Raises:
            FileNotFoundError, DamageError: they are not there any more, or not what they were.
        """
        group = self._groups[kept.group]
        answers = await group.call("recall", work.node_id, work.iteration, work.stage, kept.digests)
        shards, facts = zip(*answers, strict=True)
        return replace(kept, shards=shards, facts=join_facts(facts))

    async def mend(self) -> None:
        """Replace every process that is gone or does not answer; the trainer's models are as at its start.

        Ray nodes that came or went are met with new ranks everywhere, since ranks know the buffers they started with.
        """
        assert self.config.run_id is not None
        alive = start_buffers(self.config.run_id, self.config.cluster.buffer, self._buffers)
        moved = alive.keys() != self._buffers.keys()
        self._buffers.clear()
        self._buffers.update(alive)
        for group in self._groups.values():
            await (group.renew() if moved else group.mend())
        await self._groups["trainer"].connect()
        await self.free("weights/")
        self._weights.clear()

    async def processes(self) -> dict[str, int]:
        """Return who is who: process ids by ``role/rank``, a buffer's by its Ray node."""
        pids = {f"{role}/{rank}": pid for role, group in self._groups.items() for rank, pid in group.pids.items()}
        for node, pid in zip(self._buffers, await call_buffers(self._buffers, "pid"), strict=True):
            pids[f"buffer/{node[:8]}"] = pid
        return pids

    async def publish_weights(self, version: int) -> str:
        """Make the trainer's weights those the rollout workers act with from now on; return their digest.

        Those of ``rollout.max_staleness`` versions before stay.
        """
        answers = await self._groups["trainer"].call("publish_weights", version)
        self._weights[version], self.weights_digest = answers[0]
        self.policy_version = version
        kept = range(version - self.config.rollout.max_staleness, version + 1)
        for other in [each for each in self._weights if each not in kept]:
            del self._weights[other]
            await self.free(f"weights/{other}/")
        return self.weights_digest

    async def save(self, folder: Path, *, whole: bool) -> None:
        """Write the trainer's state to a folder; what of the policy is never trained only where ``whole``."""
        await self._groups["trainer"].call("invoke", "save", str(folder.absolute()), whole)

    async def load_reference(self, folder: Path) -> None:
        """Load the trainer's reference policy from the checkpoint of iteration 0."""
        await self._groups["trainer"].call("invoke", "load_reference", str(folder.absolute()))

    async def restore(self, folder: Path) -> None:
        """Load the trainer's state from a checkpoint."""
        await self._groups["trainer"].call("restore", str(folder.absolute()))

    async def load_weights(self, path: Path) -> None:
        """Start from the full weights in a file."""
        await self._groups["trainer"].call("invoke", "load_weights_file", str(path.absolute()))

    async def export(self, method: str, path: Path) -> None:
        """Have the trainer write its policy: ``save_weights_file`` or ``save_pretrained``."""
        await self._groups["trainer"].call("invoke", method, str(path.absolute()))

    async def buffer_metrics(self) -> dict[str, Metric]:
        """Return the buffers' usage, spilling and traffic so far; they depend on timing and are named ``perf/``."""
        merged = merge_metrics(await call_buffers(self._buffers, "metrics"))
        return {f"perf/{name}": metric for name, metric in merged.items()}

    async def free(self, prefix: str) -> None:
        """Free every shard whose id starts with ``prefix``."""
        await call_buffers(self._buffers, "free", prefix)

    def close(self) -> None:
        """End every process of the run."""
        for group in self._groups.values():
            group.kill()
        for buffer in self._buffers.values():
            ray.kill(buffer)


@asynccontextmanager
async def open_session(config: RunConfig) -> AsyncIterator[Session]:
    """Start a run's groups on the Ray cluster this process is connected to; end them when the block is left.

    Raises:
        ConfigError: the cluster has no room for all workers.
        Exception: the first that a group failed to start with; see
            :meth:`~embodyflow.workers.group.WorkerGroup.start`.
    """
    if config.run_id is None:
        raise ValueError("run_id is not set")
    check_resources(config)
    with placed(config) as places:
        buffers = start_buffers(config.run_id, config.cluster.buffer)
        groups: dict[str, WorkerGroup] = {}
        session = Session(config, groups, buffers)
        try:
            for role, shape in config.groups.items():
                groups[role] = WorkerGroup(role, shape, config, buffers, places[role], is_collective=role == "trainer")
            # Every start is waited for: one that fails does not leave another half done.
            results = await asyncio.gather(*(group.start() for group in groups.values()), return_exceptions=True)
            for result in results:
                if result is not None:
                    raise result
            await groups["trainer"].connect()
            yield session
        finally:
            session.close()


def _report(
    work: NodeWork,
    role: str,
    calls: Sequence[NodeCall],
    answers: Sequence[NodeResult],
    balance: dict[str, Metric],
) -> NodeReport:
    """Merge the answers of all ranks; of ranks with the same rows, the one that passes them on counts."""
    counted = [(call, answer) for call, answer in zip(calls, answers, strict=True) if call.passes_rows_on]
    inputs, results = [call.rows for call, _ in counted], [answer for _, answer in counted]
    shards = tuple(result.shard for result in results if result.shard is not None)
    return NodeReport(
        node_id=work.node_id,
        group=role,
        shards=shards,
        metrics=merge_metrics(result.metrics for result in results) | balance,
        info=results[0].info,
        digests=tuple(result.digest for result in results if result.digest),
        seconds=max(answer.seconds for answer in answers),
        logs=tuple(sorted((line for result in results for line in result.logs), key=lambda line: line.created)),
        facts=join_facts([result.facts for result in results]),
        order=order_of(inputs, shards) if work.layout is Layout.SPLIT else None,
    )

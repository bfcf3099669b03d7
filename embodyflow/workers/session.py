"""The worker groups of one run and what passes between them, as the control plane sees it: names and numbers."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray

from embodyflow.config import RunConfig
from embodyflow.data.metrics import Metric, merge_metrics
from embodyflow.data.row_plan import ShardRef, for_tensor_parallel
from embodyflow.workers.buffers import call_buffers, start_buffers
from embodyflow.workers.calls import LogLine, NodeCall
from embodyflow.workers.gpu_sharing import check_resources, placed
from embodyflow.workers.group import WorkerGroup
from embodyflow.workers.layout import Layout, Rows, join_facts, order_of, plan_inputs


@dataclass(frozen=True)
class NodeWork:
    """A node to be run by a group.

    Attributes:
        node_id, function, config: see :class:`~embodyflow.workers.calls.NodeCall`.
        group: ``"rollout"`` or ``"trainer"``; ``None`` runs it where its first parent's rows are.
        iteration: index of the iteration.
        layout: whether the group's ranks share the rows or each get all of them.
        needs_model: it uses the group's engine, one such node at a time; without, it runs beside others.
        only_forward_compute: it must leave weights as they are.
        trains: it changes weights, which it does once.
        timeout: seconds it may take; ``None`` for the cluster's ``node_timeout``.
        stage: folder that its rows are kept in; ``None`` for a node whose rows are soon made again.
        next_stage: that of the next iteration, for rows left over.
        policy_version: of the weights it is about, and that rollout workers act with; ``None`` for the newest.
    """

    node_id: str
    function: str
    group: str | None
    iteration: int
    config: Mapping[str, Any] = field(default_factory=dict)
    layout: Layout = Layout.SPLIT
    needs_model: bool = True
    only_forward_compute: bool = False
    trains: bool = False
    timeout: float | None = None
    stage: str | None = None
    next_stage: str | None = None
    policy_version: int | None = None


@dataclass(frozen=True, kw_only=True)
class NodeReport(Rows):
    """What a node's group answered, merged over its ranks.

    Attributes:
        metrics: merged by their reductions.
        info: of rank 0.
        digests: SHA-256 of each shard.
        seconds: of the slowest rank.
        logs: of all ranks with rows of their own, in order of time.
    """

    metrics: dict[str, Metric]
    info: dict[str, Any]
    digests: tuple[str, ...]
    seconds: float
    logs: tuple[LogLine, ...]


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
        """Run a node on its group, its rows moved from wherever its parents left them.

        Raises:
            ValueError: its parents pass on different numbers of rows.
            TimeoutError: it took longer than it may.
            Exception: whatever its function raised.
        """
        name = work.group or (parents[0].group if parents else "rollout")
        version = self.policy_version if work.policy_version is None else work.policy_version
        weights = self._weights.get(version)
        if weights is None and work.policy_version is not None:  # it would act with whatever the workers have
            raise RuntimeError(f"node {work.node_id}: the weights of version {version} are not kept any more")
        group = self._groups[name]
        per_copy = group.ranks_per_copy
        shares, metrics = plan_inputs(work.node_id, work.layout, name, len(group) // per_copy, parents)
        inputs = [for_tensor_parallel(parts, per_copy) for parts in shares]
        calls = [
            NodeCall(
                node_id=work.node_id,
                function=work.function,
                iteration=work.iteration,
                seed=self.config.seed,
                parents=tuple(ranks[rank] for ranks in inputs),
                config=work.config,
                passes_rows_on=rank % per_copy == 0,
                # A node without a model runs beside others, under whose feet it must not load any.
                weights=weights if name == "rollout" and work.needs_model else None,
                policy_version=version,
                # Only the trainer's weights can be told apart, and only its own nodes can have changed them.
                only_forward_compute=work.only_forward_compute and work.needs_model and name == "trainer",
                trains=work.trains,
                stage=work.stage,
                next_stage=work.next_stage,
                timeout=work.timeout or self.config.cluster.node_timeout,
            )
            for rank in range(len(group))
        ]
        answers = await group.run_node(calls, beside_others=not work.needs_model)
        results = answers[::per_copy]  # what ranks with the same rows answer counts once
        shards = tuple(result.shard for result in results if result.shard is not None)
        return NodeReport(
            node_id=work.node_id,
            group=name,
            shards=shards,
            metrics=merge_metrics(result.metrics for result in results) | metrics,
            info=results[0].info,
            digests=tuple(result.digest for result in results if result.digest),
            seconds=max(answer.seconds for answer in answers),
            logs=tuple(sorted((line for result in results for line in result.logs), key=lambda line: line.created)),
            facts=join_facts([result.facts for result in results]),
            order=order_of([call.rows for call in calls[::per_copy]], shards) if work.layout is Layout.SPLIT else None,
        )

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

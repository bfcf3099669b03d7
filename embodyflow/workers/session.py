"""The control plane's view of a run's worker groups and the rows that pass between them: names and numbers."""

import asyncio
import logging
from collections.abc import AsyncIterator, Container, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray

from embodyflow.config import RunConfig
from embodyflow.data.metrics import Metric, merge_metrics
from embodyflow.data.plans.row_plan import ShardRef, WeightsRef, for_tensor_parallel
from embodyflow.data.streaming.swaps import Swap
from embodyflow.data.streaming.tickets import Ticket
from embodyflow.errors import InfrastructureError
from embodyflow.process.core_time import CoreTime
from embodyflow.process.tracing import span
from embodyflow.workers.calls import (
    WEIGHTS,
    ChainCall,
    GroupCall,
    NodeCall,
    NodeReport,
    NodeResult,
    NodeWork,
    Published,
    Usage,
)
from embodyflow.workers.chains import ReportsAhead
from embodyflow.workers.clocks import record_clocks
from embodyflow.workers.gpu_sharing import check_resources, placed
from embodyflow.workers.group import WorkerGroup
from embodyflow.workers.published_versions import PublishedVersions
from embodyflow.workers.ray_threads import in_thread
from embodyflow.workers.rows.buffers import call_buffers, start_buffer, start_buffers
from embodyflow.workers.rows.layout import Layout, Rows, join_facts, order_of, plan_inputs

_logger = logging.getLogger(__name__)


class Session:
    """A run's worker groups.

    Args:
        config: Run configuration.
        groups: Worker groups by name.
        buffers: Buffer of each Ray node, by node id.
    """

    def __init__(self, config: RunConfig, groups: dict[str, WorkerGroup], buffers: dict[str, Any]) -> None:
        self.config = config
        self._groups, self._buffers = groups, buffers
        self._versions = PublishedVersions(config)
        self._stream = 0
        self._ahead = ReportsAhead()
        self._offers: list[asyncio.Task[None]] = []

    @property
    def policy_version(self) -> int:
        """Version of the newest published weights."""
        return self._versions.newest

    @property
    def weights_digest(self) -> str:
        """SHA-256 of the newest published weights."""
        return self._versions.digest

    @property
    def num_rollout_workers(self) -> int:
        """Present number of rollout workers."""
        return len(self._groups["rollout"])

    async def resize_rollouts(self, number: int) -> None:
        """Start or end the last rollout workers until there are so many; see :meth:`.WorkerGroup.resize`."""
        before = self.num_rollout_workers
        with span(f"{number} rollout workers after {before}", "run", track="phases"):
            await self._groups["rollout"].resize(number)
        if number > before:
            await self.record_clocks()

    async def run_node(self, work: NodeWork, parents: Sequence[NodeReport] = ()) -> NodeReport:
        """Run a node on its group; its rows move there from the groups of its parents.

        Raises:
            ValueError: The parents pass on different numbers of rows.
            TimeoutError: The node exceeded its time limit.
            Exception: The node function raised it.
        """
        role = work.group or (parents[0].group if parents else "rollout")
        group = self._groups[role]
        if (report := self._ahead.take(work, parents)) is not None:
            return report
        async with group.membership.used():
            if work.following and len(group) == 1:
                return await self._run_chain(work, role, parents)
            calls, balance = self._plan_calls(work, role, parents)
            answers = await group.run_node(calls, beside_others=not work.needs_model)
        return _report(work, role, calls, answers, balance)

    async def _run_chain(self, work: NodeWork, role: str, parents: Sequence[NodeReport]) -> NodeReport:
        """Run a node and those that follow it in one call; return its report, and keep those of the others."""
        following = tuple(
            (self._plan_calls(each.work, role, ())[0][0], tuple(map(_place, each.parents))) for each in work.following
        )
        calls, balance = self._plan_calls(work, role, parents)
        results = await self._groups[role].run_chain(ChainCall(role, calls[0], following))
        reports = {work.node_id: _report(work, role, calls, results[:1], balance)}
        for each, result in zip(work.following, results[1:], strict=False):  # those that did not fail
            read = [reports[parent] if isinstance(parent, str) else parent for parent in each.parents]
            calls, balance = self._plan_calls(each.work, role, read)
            reports[each.work.node_id] = _report(each.work, role, calls, [result], balance)
            self._ahead.keep(each.work, read, reports[each.work.node_id])
        return reports[work.node_id]

    def _plan_calls(
        self, work: NodeWork, role: str, parents: Sequence[NodeReport]
    ) -> tuple[list[NodeCall], dict[str, Metric]]:
        """Return the call of each rank, and metrics of how the rows are spread over them."""
        version, weights = self._weights_for(work)
        group = self._groups[role]
        num_ranks, per_copy = min(len(group), work.num_ranks or len(group)), group.ranks_per_copy
        shares, balance = plan_inputs(work.node_id, work.layout, role, num_ranks // per_copy, parents)
        inputs = [for_tensor_parallel(parts, per_copy) for parts in shares]
        calls = [
            NodeCall(
                replace(work, following=()),
                seed=self.config.seed,
                parents=tuple(ranks[rank] for ranks in inputs),
                passes_rows_on=rank % per_copy == 0,
                # A node without a model runs beside others, so it must not swap weights under them.
                weights=weights if role != "trainer" and work.needs_model else None,
                policy_version=version,
                # Only the trainer has hashes of its weights, and only nodes with its model can change them.
                checks_weights=work.only_forward_compute and work.needs_model and role == "trainer",
                timeout=work.timeout or self.config.cluster.node_timeout,
            )
            for rank in range(num_ranks)
        ]
        return calls, balance

    def _weights_for(self, work: NodeWork) -> tuple[int, WeightsRef | None]:
        """Return the version of the policy that a node acts with, and its weights if they are published.

        Raises:
            RuntimeError: The node asks for a version whose weights are gone.
        """
        version = self.policy_version if work.policy_version is None else work.policy_version
        weights = self._versions.refs.get(version)
        if weights is None and work.policy_version is not None:  # it would act with any weights the workers have
            raise RuntimeError(f"node {work.node_id}: the weights of version {version} are no longer kept")
        return version, weights

    async def play_group(
        self, rank: int, node_id: str, ticket: Ticket, folder: Path, swaps: tuple[Swap, ...] | None = None
    ) -> NodeResult:
        """Play a single group on a rollout rank, beside others.

        Its weights are kept until it has ended.

        Args:
            rank: Rank of the worker.
            node_id: Node that the group belongs to.
            ticket: The group.
            folder: Folder of its files.
            swaps: Changes of weights within its rows that the ledger names; ``None`` if it names none yet.

        Raises:
            RuntimeError: The weights of its version are gone.
            Exception: The group failed.
        """
        if ticket.version not in self._versions.refs:
            raise RuntimeError(f"group {ticket.group}: the weights of version {ticket.version} are no longer kept")
        config, place, stream = self.config, str(folder.absolute()), self._stream
        num_versions, limit = config.rollout.max_staleness + 1, config.cluster.node_timeout

        def call() -> GroupCall:
            """Return the call with the weights of the moment: a lost rank's successor gets it later."""
            weights = self._weights_of_group(ticket)
            return GroupCall(node_id, ticket, config.seed, place, weights, num_versions, stream, limit, swaps)

        with self._versions.acting(ticket.version):
            return await self._groups["rollout"].play_group(rank, call)

    def _weights_of_group(self, ticket: Ticket) -> dict[int, WeightsRef]:
        if not self.config.rollout.swaps_when_published:
            return {ticket.version: self._versions.refs[ticket.version]}
        return dict(self._versions.refs)

    async def abandon_groups(self) -> None:
        """Cancel all groups that rollout workers play; those that are asked for later belong to another stream."""
        self._stream += 1
        await self._groups["rollout"].call("abandon_groups", self._stream)

    async def recall(self, work: NodeWork, kept: NodeReport) -> NodeReport:
        """Put the rows of a node that an earlier process ran back into the buffers, from its stage on disk.

        Args:
            work: The node.
            kept: Recorded report of the node, with outdated shards.

        Raises:
            FileNotFoundError: The rows are gone.
            DamageError: The rows differ from those that were written.
        """
        group = self._groups[kept.group]
        async with group.membership.used():
            # A rank may read what another one wrote, because there may be fewer of them now.
            place = work.node_id, work.iteration, work.stage
            answers = await group.call_in_turns("recall", [(*place, *each) for each in enumerate(kept.digests)])
        shards, facts = zip(*answers, strict=True)
        return replace(kept, shards=shards, facts=join_facts(facts))

    def uses(self, node_id: str) -> bool:
        """Return True if workers of the run are on a Ray node, or a buffer."""
        return node_id in self._buffers or any(node_id in group.nodes.values() for group in self._groups.values())

    async def provide_buffers(self, nodes: Iterable[str]) -> None:
        """Start the buffer of each of these Ray nodes that has joined; workers find it by its name.

        Args:
            nodes: Ids of nodes with workers.
        """
        assert self.config.run_id is not None
        for node in set(nodes) - self._buffers.keys():
            self._buffers[node] = await in_thread(start_buffer, self.config.run_id, node, self.config.cluster.buffer)

    async def mend(self, leaving: Container[str] = ()) -> None:
        """Replace every process that is gone or does not answer; the trainer's models are those of its start.

        Args:
            leaving: Ids of Ray nodes that all workers leave. Rows in their buffers are gone afterwards.
        """
        assert self.config.run_id is not None
        before = dict(self._buffers)
        alive = await in_thread(start_buffers, self.config.run_id, self.config.cluster.buffer, before, leaving)
        self._buffers.clear()
        self._buffers.update(alive)
        for group in self._groups.values():
            await group.mend(leaving)
        for node in before.keys() - alive.keys():
            ray.kill(before[node])
        await self._groups["trainer"].connect()
        await self.record_clocks()
        await self.free(WEIGHTS)
        self._versions.clear()
        self._ahead.clear()

    async def record_clocks(self) -> None:
        """Record in the trace how far the ranks' clocks are from this process's, if there is a trace."""
        groups = self._groups.values()
        await record_clocks(partial(group.call_rank, rank, "clock") for group in groups for rank in range(len(group)))

    async def processes(self) -> dict[str, int]:
        """Return process ids by ``role/rank``, and of buffers by ``buffer/<node id>``."""
        pids = {f"{role}/{rank}": pid for role, group in self._groups.items() for rank, pid in group.pids.items()}
        for node, pid in zip(self._buffers, await call_buffers(self._buffers, "pid"), strict=True):
            pids[f"buffer/{node[:8]}"] = pid
        return pids

    async def publish_weights(self, version: int) -> str:
        """Publish the trainer's weights for rollout workers to act with from now on; return their digest.

        The weights of the last ``rollout.max_staleness`` versions stay available. Those that training leaves alone are
        published once, for all versions.
        """
        with span("publish weights", "weights", track="commits", version=version):
            published: Published = (await self._groups["trainer"].call("publish_weights", version))[0]
            weights = WeightsRef(published.own, await self._shared_weights(published.shared_digest, version))
        await self._free_all(self._versions.add(version, weights, published.digest))
        if self.config.rollout.swaps_when_published:
            self._offers = [each for each in self._offers if not each.done()]
            self._offers.append(asyncio.create_task(self._offer_weights(version)))
        return self.weights_digest

    async def _shared_weights(self, digest: str | None, version: int) -> ShardRef | None:
        """Return the weights with this SHA-256 that versions share, which the trainer publishes if they are not."""
        if digest is None:
            return None
        shard = self._versions.shared(digest, version)
        if shard is None:
            shard = (await self._groups["trainer"].call("share_weights", digest))[0]
            assert shard is not None, "rank 0 returns its shard"
            self._versions.share(digest, shard)
        return shard

    def hold(self, version: int) -> None:
        """Keep the newest published weights until :meth:`release`, however many versions follow.

        Args:
            version: Their version, which may be held already.
        """
        self._versions.hold(version)

    def held_digest(self, version: int) -> str | None:
        """Return the SHA-256 of weights that are held; ``None`` for other versions."""
        return self._versions.held_digest(version)

    async def release(self, version: int) -> None:
        """Free weights that were held, unless rollouts may still act with them."""
        await self._free_all(self._versions.release(version))

    async def _free_all(self, prefixes: Iterable[str]) -> None:
        for prefix in prefixes:
            await self.free(prefix)

    async def _offer_weights(self, version: int) -> None:
        """Let the groups that are played go on with the newest version, beside the commit."""
        try:
            await self._groups["rollout"].call("offer_weights", dict(self._versions.refs))
        except InfrastructureError as error:  # a lost worker's successor gets it with its first group
            _logger.warning("a rollout worker gets version %d later: %s", version, error)

    async def begin_save(self, folder: Path, *, whole: bool) -> asyncio.Task[None]:
        """Let the trainer begin to write its state to a folder; its later nodes wait until the state is written.

        Args:
            folder: Folder to write to.
            whole: Whether the state includes the weights that are never trained.

        Returns:
            Task that ends when all is written.
        """
        trainer, has_begun = self._groups["trainer"], asyncio.Event()

        async def save() -> None:
            async with trainer.alone(checkpoint=folder.name):
                has_begun.set()
                with span("write checkpoint", "disk", track="commits", checkpoint=folder.name):
                    await trainer.call("invoke", "save", str(folder.absolute()), whole)

        saving = asyncio.create_task(save())
        try:
            await has_begun.wait()
        except BaseException:
            saving.cancel()
            raise
        return saving

    async def load_reference(self, folder: Path) -> None:
        """Load the trainer's reference policy from the checkpoint of iteration 0."""
        await self._groups["trainer"].call("invoke", "load_reference", str(folder.absolute()))

    async def restore(self, folder: Path) -> None:
        """Load the trainer's state from a checkpoint."""
        await self._groups["trainer"].call("restore", str(folder.absolute()))

    async def rebuild_models(self) -> None:
        """Build the trainer's models and optimizers again, with their initial weights."""
        await self._groups["trainer"].connect()

    async def begin_with_models(self) -> None:
        """Make what the trainer has restored the start of RL."""
        await self._groups["trainer"].call("invoke", "begin_with_models")

    async def load_weights(self, path: Path) -> None:
        """Start RL from the full weights in a file."""
        await self._groups["trainer"].call("invoke", "load_weights_file", str(path.absolute()))

    async def export(self, method: str, path: Path) -> None:
        """Write the trainer's policy by its method ``save_weights_file`` or ``save_pretrained``."""
        await self._groups["trainer"].call("invoke", method, str(path.absolute()))

    def idle_shares(self, since: float, until: float) -> dict[str, float]:
        """Return the share of a period in which the ranks of each group were idle, by ``time.perf_counter()``."""
        return {role: group.busy.idle_share(since, until) for role, group in self._groups.items()}

    async def buffer_metrics(self) -> dict[str, Metric]:
        """Return the buffers' usage, spilling and traffic as ``perf/`` metrics, which depend on timing."""
        merged = merge_metrics(await call_buffers(self._buffers, "metrics"))
        return {f"perf/{name}": metric for name, metric in merged.items()}

    async def free(self, *prefixes: str) -> None:
        """Free every shard whose id starts with one of ``prefixes``."""
        await call_buffers(self._buffers, "free", *prefixes)

    def close(self) -> None:
        """Kill every process of the run."""
        for offer in self._offers:
            offer.cancel()
        for group in self._groups.values():
            group.kill()
        for buffer in self._buffers.values():
            ray.kill(buffer)


@asynccontextmanager
async def open_session(config: RunConfig) -> AsyncIterator[Session]:
    """Start a run's groups on the Ray cluster of this process; kill them at the end of the block.

    Raises:
        ConfigError: The cluster has no room for all workers.
        Exception: The first error of a group that failed to start; see
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
                groups[role] = WorkerGroup(
                    role,
                    shape,
                    config,
                    buffers,
                    places[role],
                    provide_buffers=session.provide_buffers,
                    is_collective=role == "trainer",
                )
            # Wait for every start: a failed one must not leave another half done.
            with span("start workers", "run", track="phases"):
                results = await asyncio.gather(*(group.start() for group in groups.values()), return_exceptions=True)
            for result in results:
                if result is not None:
                    raise result
            await groups["trainer"].connect()
            await session.record_clocks()
            yield session
        finally:
            session.close()


def _united(infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the facts that are sets, united over the ranks, as sorted lists."""
    names = [name for name, value in infos[0].items() if isinstance(value, set)]
    return {name: sorted(set().union(*(info[name] for info in infos))) for name in names}


def _core_time(answers: Sequence[NodeResult]) -> CoreTime:
    """Return the CPU time of all ranks, and how much sooner the last would have finished if each rank had a core."""
    slowest = max(answer.seconds for answer in answers)
    alone = max(answer.seconds - answer.core_time.queued for answer in answers)
    return CoreTime(sum(answer.core_time.computing for answer in answers), slowest - alone)


def _place(parent: str | NodeReport) -> str | Rows:
    """Return the location of a parent's rows, without its metrics; a node of the same call is known by its id."""
    if isinstance(parent, str):
        return parent
    return Rows(
        node_id=parent.node_id, group=parent.group, shards=parent.shards, facts=parent.facts, order=parent.order
    )


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
        info=results[0].info | _united([result.info for result in results]),
        digests=tuple(result.digest for result in results if result.digest),
        seconds=max(answer.seconds for answer in answers),
        logs=tuple(sorted((line for result in results for line in result.logs), key=lambda line: line.created)),
        facts=join_facts([result.facts for result in results]),
        order=order_of(inputs, shards) if work.layout is Layout.SPLIT else None,
        usage=sum((answer.usage for answer in answers), Usage()),
        core_time=_core_time(answers),
    )

"""One pass over a graph: each node runs once its parents are done, and reruns if its rows are lost."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from embodyflow.data.segment import Segment
from embodyflow.errors import ShardLostError
from embodyflow.graph import Node, TaskGraph
from embodyflow.graph.node_groups import group_of, runs_on
from embodyflow.orchestration.run.iterations.turns import Turns
from embodyflow.process.core_time import CoreTime
from embodyflow.workers.calls import Following, NodeReport, NodeWork

RunNode = Callable[..., Coroutine[Any, Any, NodeReport]]

MAX_LOSSES = 3
"""How often a node is retried after lost rows before the pass fails."""


class GraphRun:
    """Runs a graph once. Independent branches run concurrently.

    Nodes that do not depend on the trainer run first; the others wait until it is this iteration's turn to train.
    A root on the rollout group runs once for each version of the policy that its rows are sampled with.

    When a buffer dies, the rows it held are recreated: the node that wrote them reruns on its recorded inputs, which
    gives the same rows, and so do its ancestors if their rows are lost too. Then the reader of the lost rows reruns.
    A node that changes weights never runs twice. A node that reads the trainer's weights does not rerun once they may
    have changed, because its rows would differ. Such a loss ends the pass, and the run returns to its last commit.

    Args:
        graph: Nodes to run.
        iteration: Index of the iteration.
        run_node: Runs a node, given its work, its parents' reports and ``retries``.
        publish_weights: Publishes the weights of the current version again.
        stage_path: Returns the folder for a node's rows, given the iteration and the node's id.
        turns: Order of this iteration and of those in flight with it.
        chains: Whether nodes on the trainer may run in the call of one before them.
    """

    def __init__(
        self,
        graph: TaskGraph,
        iteration: int,
        run_node: RunNode,
        publish_weights: Callable[[], Coroutine[Any, Any, object]],
        stage_path: Callable[[int, str], str],
        turns: Turns,
        *,
        chains: bool = False,
    ) -> None:
        self._graph, self._iteration, self._turns, self._chains = graph, iteration, turns, chains
        self._run_node, self._publish_weights, self._stage_path = run_node, publish_weights, stage_path
        self._rollout = rollout_nodes(graph)
        self._reports: dict[str, NodeReport] = {}
        self._has_trained = False
        self._rerun_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def run(self) -> dict[str, NodeReport]:
        """Return the nodes' reports, by node id.

        Raises:
            ExceptionGroup: The errors of the nodes that failed.
        """
        running: dict[str, asyncio.Task[None]] = {}

        async def run_after_parents(node: Node) -> None:
            for parent in node.dependencies:
                await running[parent]
            if node.node_id not in self._rollout:
                await self._turns.wait_to_train(self._iteration)
            self._reports[node.node_id] = await self._run(node)
            if self._rollout <= self._reports.keys():
                self._turns.mark_rolled_out(self._iteration)

        async with asyncio.TaskGroup() as group:
            for node_id in self._graph.get_execution_order():
                running[node_id] = group.create_task(run_after_parents(self._graph.nodes[node_id]))
        return self._reports

    async def _run(self, node: Node, lost: ShardLostError | None = None) -> NodeReport:
        """Run a node; recreate the rows it misses and retry. ``lost`` is the loss that makes a finished node rerun."""
        for attempt in range(MAX_LOSSES + 1):
            parents = {parent: self._reports[parent] for parent in node.dependencies}
            following = self._following(node) if lost is None else ()
            # From here on: they may fail after an optimizer step.
            self._has_trained |= node.changes_weights or any(each.work.trains for each in following)
            try:
                report = await self._run_segments(node, list(parents.values()), following)
            except ShardLostError as error:
                if attempt == MAX_LOSSES or node.changes_weights:
                    raise
                lost = error
                logging.getLogger(__name__).warning("%s misses rows: %s", node.node_id, lost)
                await self._recreate(lost, node, parents)
            else:
                if lost is not None and self._may_differ(node):  # another branch may have trained meanwhile
                    raise lost
                return report
        raise AssertionError("unreachable")

    def _following(self, first: Node) -> tuple[Following, ...]:
        """Return the nodes on the trainer that can run in the call of a node: all that they read is there by then."""
        if not self._chains or not self._is_on_trainer(first.node_id):
            return ()
        chain, following = {first.node_id}, []
        for node_id in self._graph.get_execution_order():
            parents = self._graph.nodes[node_id].dependencies
            can_read = chain.intersection(parents) and self._reports.keys() | chain >= set(parents)
            if can_read and self._is_on_trainer(node_id):
                chain.add(node_id)
                read = tuple(parent if parent in chain else self._reports[parent] for parent in parents)
                following.append(Following(self._work(self._graph.nodes[node_id]), read))
        return tuple(following)

    def _is_on_trainer(self, node_id: str) -> bool:
        return runs_on(self._graph, node_id) == "trainer"

    async def _run_segments(
        self, node: Node, parents: list[NodeReport], following: tuple[Following, ...]
    ) -> NodeReport:
        """Run a node, a root of the rollout segment by segment until it passes rows on; return its last report."""
        work, seconds, core_time = replace(self._work(node), following=following), 0.0, CoreTime()
        if not self._turns.swaps_weights or node.dependencies or work.group != "rollout":
            return await self._run_node(work, parents, retries=node.retries)
        versions = self._turns.rollout_versions(self._iteration)
        for index, version in enumerate(versions):
            await self._turns.wait_to_sample(self._iteration, version)
            segment = Segment(index, is_last=version == versions[-1])
            report = await self._run_node(
                replace(work, policy_version=version, segment=segment), parents, retries=node.retries
            )
            self._turns.mark_sampled(self._iteration, version)
            seconds, core_time = seconds + report.seconds, core_time + report.core_time
            if report.shards:  # rows that an earlier process kept are whole at once
                break
        return replace(report, seconds=seconds, core_time=core_time)

    def _may_differ(self, node: Node) -> bool:
        """Return True if a rerun of the node may see other weights than its first run."""
        return node.changes_weights or (self._has_trained and group_of(node) == "trainer")

    async def _recreate(self, lost: ShardLostError, reader: Node, read: dict[str, NodeReport]) -> None:
        """Recreate the lost shard, unless another branch has replaced the reports ``read`` by newer ones."""
        kind, _, rest = lost.shard_id.partition("/")
        if kind == "weights":
            # The trainer may hold other weights by now: this iteration has trained, or another one in flight has.
            if self._has_trained or self._turns.max_staleness > 0:
                raise lost
            await self._publish_weights()
            return
        node = self._graph.nodes[rest.rpartition("/")[0]]
        if self._may_differ(node):
            raise lost
        if node is reader:  # its own output did not reach the buffer
            return
        async with self._rerun_locks[node.node_id]:
            if self._reports[node.node_id] is read[node.node_id]:
                self._reports[node.node_id] = await self._run(node, lost)

    def _work(self, node: Node) -> NodeWork:
        kept, stage = group_of(node) == "rollout", self._stage_path(self._iteration, node.node_id)
        return NodeWork(
            node_id=node.node_id,
            function=node.executable_ref,
            group=group_of(node),
            iteration=self._iteration,
            config=node.config,
            needs_model=node.node_type.is_model,
            only_forward_compute=node.only_uses_weights,
            trains=node.changes_weights,
            timeout=node.timeout_seconds,
            stage=stage if kept else None,
            next_stage=self._stage_path(self._iteration + 1, node.node_id) if kept else None,
            run_folder=str(Path(stage).parents[2]),
            policy_version=self._turns.rollout_version(self._iteration) if node.node_id in self._rollout else None,
        )


def rollout_nodes(graph: TaskGraph) -> frozenset[str]:
    """Return the ids of nodes that run on rollout workers and have no ancestor on the trainer."""
    there = {node_id for node_id in graph.nodes if runs_on(graph, node_id) == "rollout"}
    return frozenset(node_id for node_id in there if there.issuperset(graph.ancestors(node_id)))

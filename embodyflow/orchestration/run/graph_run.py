"""One pass over a graph: every node as soon as its parents are done, and again where its rows were lost."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any

from embodyflow.errors import ShardLostError
from embodyflow.graph import Node, TaskGraph
from embodyflow.graph.node_groups import group_of, runs_on
from embodyflow.orchestration.run.turns import Turns
from embodyflow.workers.calls import NodeReport, NodeWork

RunNode = Callable[..., Coroutine[Any, Any, NodeReport]]

MAX_LOSSES = 3
"""How often a node is tried again because rows were lost, before the run ends."""


class GraphRun:
    """Runs a graph once. Independent branches run at the same time.

    The nodes that need nothing of the trainer come first; the others wait until it is the iteration's turn to train.

    When a buffer dies, the rows it held are made again: the node that wrote them runs on its recorded inputs, which
    gives the same rows, and so do the nodes above it as far as their rows are lost too. Whoever missed the rows then
    runs again. A node that changes weights is never run twice, nor one that uses the trainer's once those may have
    changed: their rows would be others. Such a loss ends the pass, to be done again from the last commit.

    Args:
        graph: the nodes.
        iteration: index of the iteration.
        run_node: runs one, given its work, its parents' reports and ``retries``.
        publish_weights: makes the weights of the present version readable again.
        place: the folder for the rows of a node, given the iteration and its id.
        turns: of this iteration and of those under way beside it.
    """

    def __init__(
        self,
        graph: TaskGraph,
        iteration: int,
        run_node: RunNode,
        publish_weights: Callable[[], Coroutine[Any, Any, object]],
        place: Callable[[int, str], str],
        turns: Turns,
    ) -> None:
        self._graph, self._iteration, self._turns = graph, iteration, turns
        self._run_node, self._publish_weights, self._place = run_node, publish_weights, place
        self._rollout = rollout_nodes(graph)
        self._reports: dict[str, NodeReport] = {}
        self._has_trained = False
        self._making: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def run(self) -> dict[str, NodeReport]:
        """Return the nodes' reports, by node id.

        Raises:
            ExceptionGroup: what the nodes that failed raised.
        """
        running: dict[str, asyncio.Task[None]] = {}

        async def run_after_parents(node: Node) -> None:
            for parent in node.dependencies:
                await running[parent]
            if node.node_id not in self._rollout:
                await self._turns.to_train(self._iteration)
            self._reports[node.node_id] = await self._run(node)
            if self._rollout <= self._reports.keys():
                self._turns.rolled_out(self._iteration)

        async with asyncio.TaskGroup() as group:
            for node_id in self._graph.get_execution_order():
                running[node_id] = group.create_task(run_after_parents(self._graph.nodes[node_id]))
        return self._reports

    async def _run(self, node: Node, lost: ShardLostError | None = None) -> NodeReport:
        """Run a node, or run it again because of what was lost; what it misses is made again first."""
        for attempt in range(MAX_LOSSES + 1):
            parents = {parent: self._reports[parent] for parent in node.dependencies}
            self._has_trained |= node.changes_weights  # from here on: it may fail with its step taken
            try:
                report = await self._run_node(self._work(node), list(parents.values()), retries=node.retries)
            except ShardLostError as error:
                if attempt == MAX_LOSSES or node.changes_weights:
                    raise
                lost = error
                logging.getLogger(__name__).warning("%s misses rows: %s", node.node_id, lost)
                await self._make_again(lost, node, parents)
            else:
                if lost is not None and self._would_differ(node):  # another branch may have trained meanwhile
                    raise lost
                return report
        raise AssertionError("unreachable")

    def _would_differ(self, node: Node) -> bool:
        """Say whether the node, run again, may see other weights than the first time."""
        return node.changes_weights or (self._has_trained and group_of(node) == "trainer")

    async def _make_again(self, lost: ShardLostError, reader: Node, read: dict[str, NodeReport]) -> None:
        """Make the lost shard again, unless another branch has done so since ``read``."""
        kind, _, rest = lost.shard_id.partition("/")
        if kind == "weights":
            # The trainer's weights are others by now, or may be: other iterations are under way.
            if self._has_trained or self._turns.max_staleness > 0:
                raise lost
            await self._publish_weights()
            return
        node = self._graph.nodes[rest.rpartition("/")[0]]
        if self._would_differ(node):
            raise lost
        if node is reader:  # its own output did not reach the buffer
            return
        async with self._making[node.node_id]:
            if self._reports[node.node_id] is read[node.node_id]:
                self._reports[node.node_id] = await self._run(node, lost)

    def _work(self, node: Node) -> NodeWork:
        kept = group_of(node) == "rollout"
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
            stage=self._place(self._iteration, node.node_id) if kept else None,
            next_stage=self._place(self._iteration + 1, node.node_id) if kept else None,
            policy_version=self._turns.rollout_version(self._iteration) if node.node_id in self._rollout else None,
        )


def rollout_nodes(graph: TaskGraph) -> frozenset[str]:
    """Return the nodes that rollout workers run and that come after none of the trainer's."""
    there = {node_id for node_id in graph.nodes if runs_on(graph, node_id) == "rollout"}
    return frozenset(node_id for node_id in there if there.issuperset(graph.ancestors(node_id)))

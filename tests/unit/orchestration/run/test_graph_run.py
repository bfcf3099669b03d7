"""Which nodes rerun after lost rows. The nodes are stubs, so no process is needed."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from embodyflow.errors import ShardLostError
from embodyflow.orchestration.run.iterations.graph_run import GraphRun
from embodyflow.orchestration.run.iterations.turns import Turns
from embodyflow.workers.calls import NodeReport, NodeWork
from pipelines import Node, NodeRole, NodeType, TaskGraph

TRAIN = {"node_type": NodeType.MODEL_TRAIN, "node_role": NodeRole.ACTOR}
FORWARD = TRAIN | {"only_forward_compute": True}
HERE = {"node_type": NodeType.COMPUTE}


def graph_of(**nodes: tuple[Sequence[str], dict[str, Any]]) -> TaskGraph:
    made = [
        Node(node_id=name, executable_ref="m:f", dependencies=tuple(parents), **fields)
        for name, (parents, fields) in nodes.items()
    ]
    return TaskGraph.of(made, "g")


class Pass:
    """One pass over a graph, in which the first run of ``reader`` finds the rows of ``old_log_prob`` lost.

    Attributes:
        ran: Node ids in the order of their starts.
        works: Work of each of these runs.
    """

    def __init__(self, reader: str, seconds: Callable[[str, int], float] = lambda name, count: 0.0) -> None:
        self._reader, self._seconds = reader, seconds
        self.ran: list[str] = []
        self.works: list[NodeWork] = []

    def over(self, graph: TaskGraph, *, chains: bool = False) -> None:
        async def publish() -> None:
            raise AssertionError("no weights were lost")

        asyncio.run(
            GraphRun(
                graph,
                1,
                self._run_node,
                publish,
                lambda _, node_id: f"run/stages/iteration/{node_id}",
                Turns(0),
                chains=chains,
            ).run()
        )

    async def _run_node(self, work: NodeWork, parents: list[NodeReport], *, retries: int) -> NodeReport:
        self.works.append(work)
        self.ran.append(work.node_id)
        count = self.ran.count(work.node_id)
        await asyncio.sleep(self._seconds(work.node_id, count))
        if (work.node_id, count) == (self._reader, 1):
            raise ShardLostError("1/old_log_prob/0", "host")
        nothing: dict[str, Any] = {"metrics": {}, "info": {}, "digests": (), "seconds": 0.0, "logs": ()}
        return NodeReport(node_id=work.node_id, group="trainer", shards=(), **nothing)


def test_lost_rows_are_recreated_with_the_same_weights() -> None:
    graph = graph_of(old_log_prob=((), FORWARD), report=(["old_log_prob"], HERE), train=(["report"], TRAIN))
    passed = Pass("report")
    passed.over(graph)
    assert passed.ran == ["old_log_prob", "report", "old_log_prob", "report", "train"]


def test_rows_of_weights_that_were_trained_since_are_not_recreated() -> None:
    graph = graph_of(
        old_log_prob=((), FORWARD), train=(["old_log_prob"], TRAIN), report=(["old_log_prob", "train"], HERE)
    )
    passed = Pass("report")
    with pytest.raises(ExceptionGroup) as caught:
        passed.over(graph)
    assert [type(error) for error in caught.value.exceptions] == [ShardLostError]
    assert passed.ran == ["old_log_prob", "train", "report"]


@pytest.mark.parametrize("slow", [("train", 1), ("old_log_prob", 2)], ids=["in training", "trained before it ends"])
def test_rows_are_not_recreated_while_another_branch_trains(slow: tuple[str, int]) -> None:
    graph = graph_of(
        old_log_prob=((), FORWARD),
        train=(["old_log_prob", "wait"], TRAIN),
        wait=(["old_log_prob"], HERE),
        report=(["old_log_prob"], HERE),
    )
    seconds = {"wait": 0.0, "report": 0.05} if slow[0] == "train" else {"wait": 0.05, "report": 0.0}
    passed = Pass("report", lambda name, count: 0.2 if (name, count) == slow else seconds.get(name, 0.0))
    with pytest.raises(ExceptionGroup) as caught:
        passed.over(graph)
    assert [type(error) for error in caught.value.exceptions] == [ShardLostError]
    assert passed.ran.count("report") == 1


def test_a_training_node_that_misses_its_rows_does_not_rerun() -> None:
    """Ranks refuse to continue after a failed training call until the last commit is restored."""
    graph = graph_of(old_log_prob=((), FORWARD), train=(["old_log_prob"], TRAIN))
    passed = Pass("train")
    with pytest.raises(ExceptionGroup):
        passed.over(graph)
    assert passed.ran == ["old_log_prob", "train"]


def test_a_reference_node_reruns_and_must_not_change_weights() -> None:
    reference = TRAIN | {"node_role": NodeRole.REFERENCE, "retries": 1}
    graph = graph_of(old_log_prob=((), reference), report=(["old_log_prob"], HERE))
    passed = Pass("report")
    passed.over(graph)
    assert passed.ran == ["old_log_prob", "report", "old_log_prob", "report"]
    assert [(work.trains, work.only_forward_compute) for work in passed.works[:2]] == [(False, True), (False, False)]


@pytest.mark.parametrize(("node_type", "is_forward_only"), [("MODEL_INFERENCE", True), ("MODEL_TRAIN", False)])
def test_a_node_must_be_declared_to_train(node_type: str, is_forward_only: bool) -> None:
    """An undeclared node may rerun, and would then train twice."""
    passed = Pass("nobody")
    passed.over(graph_of(train=((), TRAIN | {"node_type": NodeType(node_type)})))
    [work] = passed.works
    assert (work.only_forward_compute, work.trains) == (is_forward_only, not is_forward_only)


@pytest.mark.parametrize("chains", [True, False])
def test_nodes_of_the_trainer_follow_the_first_in_its_call(chains: bool) -> None:
    reward = {"node_type": NodeType.COMPUTE}
    graph = graph_of(
        rollout=((), {"node_type": NodeType.MODEL_INFERENCE, "node_role": NodeRole.ROLLOUT}),
        reward=(["rollout"], reward),
        old_log_prob=(["rollout"], FORWARD),
        advantage=(["old_log_prob", "reward"], HERE),
        train=(["advantage"], TRAIN),
    )
    passed = Pass("nobody", lambda name, count: 0.05 if name == "reward" else 0.0)
    passed.over(graph, chains=chains)
    following = {work.node_id: [each.work.node_id for each in work.following] for work in passed.works}
    alone: dict[str, list[str]] = {name: [] for name in graph.nodes}
    # The reward is not there when old_log_prob starts, so advantage waits for it.
    assert following == (alone | {"advantage": ["train"]} if chains else alone)


def test_a_node_that_reruns_is_alone_in_its_call() -> None:
    graph = graph_of(old_log_prob=((), FORWARD), report=(["old_log_prob"], HERE), read=(["report"], HERE))
    passed = Pass("report")
    passed.over(graph, chains=True)
    runs = [(work.node_id, [each.work.node_id for each in work.following]) for work in passed.works]
    assert runs == [
        ("old_log_prob", ["report", "read"]),
        ("report", ["read"]),
        ("old_log_prob", []),
        ("report", []),
        ("read", []),
    ]

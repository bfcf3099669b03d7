"""The chain of nodes that takes longest."""

from embodyflow.graph import Pipeline, TaskGraph
from embodyflow.graph.critical_path import critical_path


def test_the_longest_branch_decides() -> None:
    pipeline = Pipeline("branches")
    parents = {"play": [], "score": ["play"], "judge": ["play"], "train": ["score", "judge"]}
    for node_id, deps in parents.items():
        pipeline.add_node(node_id, func="node_calls:call_of", deps=deps)
    graph = pipeline.build()
    assert critical_path(graph, {"play": 1.0, "score": 3.0, "judge": 2.0, "train": 1.0}) == ["play", "score", "train"]
    assert critical_path(graph, {"play": 1.0, "score": 3.0, "judge": 5.0}) == ["play", "judge", "train"]
    assert critical_path(graph, {"play": 9.0})[0] == "play"


def test_a_graph_without_nodes_has_no_path() -> None:
    assert critical_path(TaskGraph("empty"), {}) == []

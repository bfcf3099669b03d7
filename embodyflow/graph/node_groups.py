"""Worker groups of nodes."""

from typing import Literal

from embodyflow.graph.graph import TaskGraph
from embodyflow.graph.node import Node, NodeRole

Group = Literal["rollout", "trainer"]


def group_of(node: Node) -> Group | None:
    """Return the worker group of the node's model; ``None`` if it has no model and runs where its rows are."""
    if not node.node_type.is_model:
        return None
    return "rollout" if node.node_role is NodeRole.ROLLOUT else "trainer"


def runs_on(graph: TaskGraph, node_id: str) -> Group:
    """Return the worker group that runs a node: its model's group, else its first parent's, else rollout for a root."""
    node = graph.nodes[node_id]
    return group_of(node) or (runs_on(graph, node.dependencies[0]) if node.dependencies else "rollout")

"""Worker groups of nodes."""

from collections.abc import Mapping
from typing import Literal, Protocol

from embodyflow.graph.node import Node, NodeRole

Group = Literal["rollout", "trainer"]


def group_of(node: Node) -> Group | None:
    """Return the worker group of the node's model; ``None`` if it has no model and runs where its rows are."""
    if not node.node_type.is_model:
        return None
    return "rollout" if node.node_role is NodeRole.ROLLOUT else "trainer"


class _Graph(Protocol):
    @property
    def nodes(self) -> Mapping[str, Node]: ...


def runs_on(graph: _Graph, node_id: str) -> Group:
    """Return the worker group that runs a node: its model's group, else its first parent's, else rollout for a root."""
    return group_in(graph.nodes, node_id)


def group_in(nodes: Mapping[str, Node], node_id: str) -> Group:
    """Return the worker group that runs a node, as :func:`runs_on`, given the nodes of its graph by id."""
    node = nodes[node_id]
    return group_of(node) or (group_in(nodes, node.dependencies[0]) if node.dependencies else "rollout")

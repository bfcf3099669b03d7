"""The graph of a pipeline: nodes and the order in which they run."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any

from embodyflow.graph.node import Node
from embodyflow.graph.validation import (
    GraphError,
    Problem,
    ancestors,
    check,
    parse_nodes,
    structure_problems,
)


class TaskGraph:
    """Nodes and the edges between them.

    A graph holds only names and numbers, so it travels as JSON (:meth:`to_dict`): as a Prefect parameter, to
    another process or into a run's folder.

    Args:
        graph_id: Name of the pipeline.
        description: Text for readers.

    Attributes:
        nodes: Nodes by id, in the order they were added.
        adj: Children of each node.
        rev_adj: Parents of each node, in the order of its dependencies.
    """

    def __init__(self, graph_id: str, description: str = "") -> None:
        self.graph_id = graph_id
        self.description = description
        self.nodes: dict[str, Node] = {}
        self.adj: dict[str, list[str]] = {}
        self.rev_adj: dict[str, list[str]] = {}

    def add_node(self, node: Node) -> None:
        """Add one node; its dependencies may be added later.

        Raises:
            GraphError: The id is taken.
        """
        if node.node_id in self.nodes:
            raise GraphError([Problem(node.node_id, "node_id: duplicate")], self.graph_id)
        self.nodes[node.node_id] = node
        self.build_adjacency_lists()

    def build_adjacency_lists(self) -> None:
        """Fill :attr:`adj` and :attr:`rev_adj` from the nodes, without dependencies that are not added yet."""
        self.adj = {node_id: [] for node_id in self.nodes}
        self.rev_adj = {node_id: [] for node_id in self.nodes}
        for node_id, node in self.nodes.items():
            for parent in node.dependencies:
                if parent in self.nodes:
                    self.adj[parent].append(node_id)
                    self.rev_adj[node_id].append(parent)

    def problems(self) -> list[Problem]:
        """Return all problems of the graph; this imports the nodes' functions."""
        _, problems = check([node.model_dump() for node in self.nodes.values()])
        return problems

    def validate_graph(self) -> tuple[bool, str]:
        """Return True and an empty string if the graph can run, else False and one line per problem."""
        problems = self.problems()
        return not problems, "\n".join(str(problem) for problem in problems)

    def get_execution_order(self) -> list[str]:
        """Return the node ids in an order in which parents come first.

        Raises:
            graphlib.CycleError: The graph has a cycle.
        """
        return list(TopologicalSorter(self.rev_adj).static_order())

    def ancestors(self, node_id: str) -> list[str]:
        """Return every node whose output can reach ``node_id``, nearest first."""
        return ancestors(node_id, self.rev_adj)

    @property
    def digest(self) -> str:
        """SHA-256 of the nodes, independent of their order and of the graph's name and description."""
        nodes = [self.nodes[node_id].model_dump(mode="json") for node_id in sorted(self.nodes)]
        return hashlib.sha256(json.dumps(nodes, sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return the graph as JSON-able values; the YAML loader reads a file of them."""
        nodes = [node.model_dump(mode="json", exclude_defaults=True) for node in self.nodes.values()]
        return {"dag_id": self.graph_id, "description": self.description, "nodes": nodes}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "TaskGraph":
        """Return the graph that :meth:`to_dict` described, without importing its functions.

        Raises:
            GraphError: The nodes do not form a valid graph.
        """
        nodes, problems = parse_nodes(data["nodes"])
        problems += structure_problems(data["nodes"])
        if problems:
            raise GraphError(problems, data["dag_id"])
        return cls.of(nodes, data["dag_id"], data["description"])

    @classmethod
    def of(cls, nodes: Iterable[Node], graph_id: str, description: str = "") -> "TaskGraph":
        """Return the graph of ``nodes`` without checking it."""
        graph = cls(graph_id, description)
        for node in nodes:
            graph.add_node(node)
        return graph


def build_graph(specs: Sequence[Any], graph_id: str, description: str, source: str) -> TaskGraph:
    """Build the graph that specs describe, and report all problems at once.

    Args:
        specs: Mappings with the keys of :class:`~embodyflow.graph.node.Node`; ``executable_ref`` may be a callable.
        graph_id: Name of the pipeline.
        description: Text for readers.
        source: Pipeline or file that messages name.

    Raises:
        GraphError: The graph has problems, one line each.
    """
    nodes, problems = check(specs)
    if problems:
        raise GraphError(problems, source)
    return TaskGraph.of(nodes, graph_id, description)

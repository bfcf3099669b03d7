"""The graph that a pipeline is: what runs, on what, after what."""

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

    It holds names and numbers only, so it travels as JSON (:meth:`to_dict`): as a Prefect parameter, to
    another process, into a run's folder.

    Args:
        graph_id: the pipeline's name.
        description: for people.

    Attributes:
        nodes: by id, in the order they were added.
        adj: node to its children.
        rev_adj: node to its parents, in the order of its dependencies.
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
            GraphError: the id is taken.
        """
        if node.node_id in self.nodes:
            raise GraphError([Problem(node.node_id, "node_id: duplicate")], self.graph_id)
        self.nodes[node.node_id] = node
        self.build_adjacency_lists()

    def build_adjacency_lists(self) -> None:
        """Fill :attr:`adj` and :attr:`rev_adj` from the nodes; dependencies not added yet are left out."""
        self.adj = {node_id: [] for node_id in self.nodes}
        self.rev_adj = {node_id: [] for node_id in self.nodes}
        for node_id, node in self.nodes.items():
            for parent in node.dependencies:
                if parent in self.nodes:
                    self.adj[parent].append(node_id)
                    self.rev_adj[node_id].append(parent)

    def problems(self) -> list[Problem]:
        """Return everything that is wrong with the graph; it imports the nodes' functions to look at them."""
        _, problems = check([node.model_dump() for node in self.nodes.values()])
        return problems

    def validate_graph(self) -> tuple[bool, str]:
        """Return whether the graph can run, and if not, why: one line per problem."""
        problems = self.problems()
        return not problems, "\n".join(str(problem) for problem in problems)

    def get_execution_order(self) -> list[str]:
        """Return the ids so that every node comes after its parents.

        Raises:
            graphlib.CycleError: there is no such order.
        """
        return list(TopologicalSorter(self.rev_adj).static_order())

    def ancestors(self, node_id: str) -> list[str]:
        """Return every node whose output can reach ``node_id``, nearest first."""
        return ancestors(node_id, self.rev_adj)

    @property
    def digest(self) -> str:
        """SHA-256 of the nodes, whatever the order they were added in; names of the graph are left out."""
        nodes = [self.nodes[node_id].model_dump(mode="json") for node_id in sorted(self.nodes)]
        return hashlib.sha256(json.dumps(nodes, sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return the graph as JSON-able values; in a file they are a pipeline that the YAML loader reads."""
        nodes = [node.model_dump(mode="json", exclude_defaults=True) for node in self.nodes.values()]
        return {"dag_id": self.graph_id, "description": self.description, "nodes": nodes}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "TaskGraph":
        """Undo :meth:`to_dict`. The functions are not imported: this process need not have them.

        Raises:
            GraphError: the nodes do not make a graph.
        """
        nodes, problems = parse_nodes(data["nodes"])
        problems += structure_problems(data["nodes"])
        if problems:
            raise GraphError(problems, data["dag_id"])
        return cls.of(nodes, data["dag_id"], data["description"])

    @classmethod
    def of(cls, nodes: Iterable[Node], graph_id: str, description: str = "") -> "TaskGraph":
        """Return the graph of ``nodes``, unchecked."""
        graph = cls(graph_id, description)
        for node in nodes:
            graph.add_node(node)
        return graph


def build_graph(specs: Sequence[Any], graph_id: str, description: str, source: str) -> TaskGraph:
    """Make the graph that specs describe, or report everything that is wrong with it.

    Args:
        specs: mappings with the keys of :class:`~embodyflow.graph.node.Node`; ``executable_ref`` may be a callable.
        graph_id: the pipeline's name.
        description: for people.
        source: what the report names: the pipeline or its file.

    Raises:
        GraphError: one line per problem.
    """
    nodes, problems = check(specs)
    if problems:
        raise GraphError(problems, source)
    return TaskGraph.of(nodes, graph_id, description)

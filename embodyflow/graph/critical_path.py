"""The chain of nodes that decides how long an iteration takes."""

from collections.abc import Mapping

from embodyflow.graph.graph import TaskGraph


def critical_path(graph: TaskGraph, seconds: Mapping[str, float]) -> list[str]:
    """Return the chain of dependent nodes that takes longest, first to last.

    The path that ends with node n takes ``p(n) = s(n) + max over parents m of p(m)``.

    Args:
        graph: Nodes of the iteration.
        seconds: Time s of each node; a node without a time takes none.
    """
    longest: dict[str, tuple[float, list[str]]] = {}
    for node_id in graph.get_execution_order():
        parents = [longest[parent] for parent in graph.nodes[node_id].dependencies]
        before, path = max(parents, key=lambda each: each[0], default=(0.0, []))
        longest[node_id] = before + seconds.get(node_id, 0.0), [*path, node_id]
    # Of equal paths the last one goes on to the end of the graph.
    return max(reversed(longest.values()), key=lambda each: each[0], default=(0.0, []))[1]

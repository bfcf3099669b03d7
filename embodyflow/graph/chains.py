"""Chains of nodes: the parts of a graph that one worker runs."""

from collections.abc import Iterator
from dataclasses import dataclass

from embodyflow.errors import ConfigError
from embodyflow.graph.graph import TaskGraph


@dataclass(frozen=True)
class Chain:
    """Nodes that one worker runs in sequence.

    Attributes:
        chain_id: ``<graph>_split_<k>``, or the graph's id if it is not split.
        nodes: Node ids in execution order.
    """

    chain_id: str
    nodes: tuple[str, ...]


def split(graph: TaskGraph, max_chains: int) -> list[Chain]:
    """Split a graph into its paths from a root to a leaf, so that branches run on different workers.

    An edge that shortcuts a longer path between the same two nodes makes no branch. The result equals that of the DAG
    Planner of DistFlow (arXiv:2507.13833), which splits at forks whose branches never meet again and where branches
    meet, until neither rule applies. A node on several paths runs on the workers of all of them; rows from other paths
    come through the buffers.

    Args:
        graph: Valid graph.
        max_chains: Number of workers.

    Raises:
        ConfigError: The graph has more paths than there are workers.
    """
    paths: list[tuple[str, ...]] = []
    for path in _paths(graph):
        if len(paths) == max_chains:
            raise ConfigError(
                f"{graph.graph_id}: splits into more chains than the cluster has workers ({max_chains}); "
                "add workers, or plan with branches=serial"
            )
        paths.append(path)
    if len(paths) == 1:
        return [single_chain(graph)]
    return [Chain(f"{graph.graph_id}_split_{k}", path) for k, path in enumerate(sorted(paths))]


def single_chain(graph: TaskGraph) -> Chain:
    """Return the whole graph as one chain: branches run in sequence, each on all workers."""
    return Chain(graph.graph_id, tuple(graph.get_execution_order()))


def _paths(graph: TaskGraph) -> Iterator[tuple[str, ...]]:
    children = _reduced_children(graph)
    waiting: list[tuple[str, ...]] = [(node_id,) for node_id, parents in graph.rev_adj.items() if not parents]
    while waiting:
        path = waiting.pop()
        if not children[path[-1]]:
            yield path
        waiting.extend((*path, child) for child in children[path[-1]])


def _reduced_children(graph: TaskGraph) -> dict[str, list[str]]:
    """Return each node's children in the graph's transitive reduction, which omits shortcuts."""
    above = {node_id: set(graph.ancestors(node_id)) for node_id in graph.nodes}
    return {
        node_id: [child for child in children if not any(node_id in above[p] for p in graph.rev_adj[child])]
        for node_id, children in graph.adj.items()
    }

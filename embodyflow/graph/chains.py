"""Which nodes a worker runs: the chains that a graph splits into."""

from collections.abc import Iterator
from dataclasses import dataclass

from embodyflow.errors import ConfigError
from embodyflow.graph.graph import TaskGraph


@dataclass(frozen=True)
class Chain:
    """Nodes that one worker runs one after the other.

    Attributes:
        chain_id: ``<graph>_split_<k>``, or the graph's own id where it is not split.
        nodes: in execution order.
    """

    chain_id: str
    nodes: tuple[str, ...]


def split(graph: TaskGraph, max_chains: int) -> list[Chain]:
    """Split a graph into its paths from a root to a leaf, so that branches run on different workers.

    An edge past a longer way between the same two nodes makes no branch. The paths are what is left when a graph
    is split at forks whose branches never meet again, and where branches meet, until neither can be done any
    more (the DAG Planner of DistFlow, arXiv:2507.13833). A node on several paths runs on the workers of all of
    them; rows from other paths come through the buffers.

    Args:
        graph: a valid graph.
        max_chains: how many workers there are.

    Raises:
        ConfigError: there are more paths than that.
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
        return [whole(graph)]
    return [Chain(f"{graph.graph_id}_split_{k}", path) for k, path in enumerate(sorted(paths))]


def whole(graph: TaskGraph) -> Chain:
    """Return the unsplit graph: branches run one after the other, each on all workers."""
    return Chain(graph.graph_id, tuple(graph.get_execution_order()))


def _paths(graph: TaskGraph) -> Iterator[tuple[str, ...]]:
    children = _children_without_detour(graph)
    waiting: list[tuple[str, ...]] = [(node_id,) for node_id, parents in graph.rev_adj.items() if not parents]
    while waiting:
        path = waiting.pop()
        if not children[path[-1]]:
            yield path
        waiting.extend((*path, child) for child in children[path[-1]])


def _children_without_detour(graph: TaskGraph) -> dict[str, list[str]]:
    """Return the children of the graph's transitive reduction: those that are not reached through another one."""
    above = {node_id: set(graph.ancestors(node_id)) for node_id in graph.nodes}
    return {
        node_id: [child for child in children if not any(node_id in above[p] for p in graph.rev_adj[child])]
        for node_id, children in graph.adj.items()
    }

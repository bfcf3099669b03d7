"""The node of a graph whose rows can be played group by group."""

import re

from embodyflow.errors import ConfigError
from embodyflow.graph import TaskGraph
from embodyflow.graph.node_groups import runs_on

_GENERATE = re.compile(r"tasks(\.\w+)?:generate")


def generating_node(graph: TaskGraph) -> str:
    """Return the id of the only node that plays rows.

    Raises:
        ConfigError: Further nodes play rows, or the node is not the built-in one.
    """
    players = [
        node_id
        for node_id, node in graph.nodes.items()
        if node.node_type.is_model and runs_on(graph, node_id) == "rollout"
    ]
    own = [node_id for node_id in players if not _GENERATE.fullmatch(graph.nodes[node_id].executable_ref)]
    if own or len(players) != 1:
        named = f"node {own[0]!r} plays rows too" if own else f"the graph has {len(players)} nodes that play rows"
        raise ConfigError(
            f"rollout.mode=streaming: {named}; allowed are pipelines in which tasks:generate alone uses the policy on "
            "rollout workers, such as grpo and ppo"
        )
    return players[0]

"""Calls of node functions, as a rank of a run gets them."""

from typing import Any

from embodyflow.workers.calls import NodeCall, NodeWork


def call_of(
    node_id: str = "node", *, iteration: int = 4, seed: int = 7, policy_version: int = 0, **work: Any
) -> NodeCall:
    """Return the call of a node without parents; further keywords are fields of its :class:`NodeWork`."""
    function = work.pop("function", f"tasks:{node_id}")
    return NodeCall(NodeWork(node_id, function, None, iteration, **work), seed, policy_version=policy_version)

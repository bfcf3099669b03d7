"""Nodes of siiRL's files that only move rows: here rows move by themselves, so these nodes are left out."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

TRANSPORT_ROLES = {
    "DATA_REBALANCE": "the data coordinator balances rows by tokens after every node",
    "POSTPROCESS_SAMPLING": "sampling nodes fill the batch, and the data coordinator balances rows by tokens",
}
"""Roles of such nodes, and the reason to leave them out."""

TRANSPORT_TYPES = {
    "PUT_TO_BUFFER": "rows move to the next node by themselves",
    "GET_FROM_BUFFER": "rows move to the next node by themselves",
    "BARRIER_SYNC": "a node waits for its parents by itself",
}
"""Types of such nodes, and the reason to leave them out."""


def why_left_out(spec: object) -> str | None:
    """Return the reason to leave out a node that only moves rows; ``None`` for a node with a function or other work."""
    if not isinstance(spec, Mapping) or "executable_ref" in spec:
        return None
    by_role = TRANSPORT_ROLES.get(str(spec.get("node_role")).upper())
    return by_role or TRANSPORT_TYPES.get(str(spec.get("node_type")).upper())


def leave_out(specs: Sequence[Any], others: Collection[str] = ()) -> list[Any]:
    """Return the specs without nodes that only move rows; children of those depend on their parents instead.

    Args:
        specs: Specs of all nodes, with dependencies as they come from the file.
        others: Ids of further nodes to leave out.
    """
    parents = {
        spec["node_id"]: spec.get("dependencies") or []
        for spec in specs
        if isinstance(spec, Mapping)
        and (why_left_out(spec) is not None or spec.get("node_id") in others)
        and isinstance(spec.get("node_id"), str)
        and isinstance(spec.get("dependencies") or [], list)
    }

    def reached(dependencies: Sequence[Any], seen: frozenset[Any]) -> dict[Any, None]:
        found: dict[Any, None] = {}
        for parent in dependencies:
            if not isinstance(parent, str) or parent not in parents:
                found[parent] = None
            elif parent not in seen:  # a cycle of such nodes leads nowhere
                found |= reached(parents[parent], seen | {parent})
        return found

    kept: list[Any] = []
    for spec in specs:
        if isinstance(spec, Mapping) and isinstance(spec.get("node_id"), str) and spec["node_id"] in parents:
            continue
        dependencies = spec.get("dependencies") if isinstance(spec, Mapping) else None
        if isinstance(dependencies, list) and any(isinstance(each, str) and each in parents for each in dependencies):
            spec = {**spec, "dependencies": list(reached(dependencies, frozenset()))}
        kept.append(spec)
    return kept

"""The comparison of two records, iteration by iteration: decisions, digests of rows and weights, and metrics."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from embodyflow.record.ledger import Ledger

SHOWN = 12
"""Letters of a digest in a line."""


def difference(recorded: Ledger, repeated: Ledger, iteration: int, nodes: Sequence[str]) -> str | None:
    """Return the first difference of an iteration in a few words, ``None`` without one.

    Args:
        recorded: Ledger of the run.
        repeated: Ledger of its reproduction, in which the iteration is committed.
        iteration: Index of the iteration.
        nodes: Nodes of the graph, in the order in which they run.
    """
    return next(_differences(recorded, repeated, iteration, nodes), None)


def evaluation_difference(recorded: Ledger, repeated: Ledger, iteration: int) -> str | None:
    """Return the first difference of the evaluation after an iteration, ``None`` if one of them lacks it."""
    before, now = (each.newest("evaluation", iteration) for each in (recorded, repeated))
    if before is None or now is None:
        return None
    return next(_unequal_values("evaluation", before["metrics"], now["metrics"]), None)


def num_digests(ledger: Ledger, iteration: int) -> int:
    """Return how many digests the ledger has of an iteration."""
    commit = ledger.newest("commit", iteration) or {}
    return sum(map(len, commit.get("digests", {}).values())) + 1


def _differences(recorded: Ledger, repeated: Ledger, iteration: int, nodes: Sequence[str]) -> Iterator[str]:
    if _text(recorded.newest("groups", iteration)) != _text(repeated.newest("groups", iteration)):
        yield "its groups differ"
    if recorded.newest("workers", iteration) != repeated.newest("workers", iteration):
        yield "its number of rollout workers differs"
    before, now = recorded.newest("commit", iteration) or {}, repeated.newest("commit", iteration) or {}
    digests, others = before.get("digests", {}), now.get("digests", {})
    for node in sorted(digests, key=lambda each: (nodes.index(each) if each in nodes else len(nodes), each)):
        yield from _unequal_rows(node, digests[node], others.get(node, []))
    if before["weights_digest"] != now.get("weights_digest"):
        yield f"weights differ: {_pair(before['weights_digest'], now.get('weights_digest', ''))}"
    yield from _unequal_values("metric", before.get("metrics", {}), now.get("metrics", {}))


def _unequal_rows(node: str, before: Sequence[str], now: Sequence[str]) -> Iterator[str]:
    if len(before) != len(now):
        yield f"rows of node {node} differ: {len(before)} ranks made them, now {len(now)}"
    for rank, (one, other) in enumerate(zip(before, now, strict=False)):
        if one != other:
            yield f"rows of node {node}, rank {rank}, differ: {_pair(one, other)}"


def _unequal_values(kind: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(before):
        if _text(before[name]) != _text(now.get(name)):
            yield f"{kind} {name} differs: recorded {before[name]}, now {now.get(name)}"


def _pair(before: str, now: str) -> str:
    return f"recorded {before[:SHOWN]}, now {now[:SHOWN]}"


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)  # as text, NaN equals NaN

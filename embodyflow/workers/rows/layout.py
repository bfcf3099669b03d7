"""The rows that each rank of a group gets from a node's parents."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from embodyflow.data.metrics import Metric, maximum
from embodyflow.data.plans.balance import cut_between_groups, spread
from embodyflow.data.plans.partition import attention_cost, imbalance
from embodyflow.data.plans.row_plan import (
    Index,
    RankInput,
    RowFacts,
    ShardRef,
    cut_like,
    keep_layout,
    replicate,
    split_evenly,
)


class Layout(StrEnum):
    """How a node's rows are spread over the ranks of its group."""

    SPLIT = "split"
    REPLICATE = "replicate"


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Location of a node's output.

    Attributes:
        node_id: Name of the node.
        group: Group whose ranks hold the rows.
        shards: One shard per rank; empty for a node that passes no rows on.
        facts: Lengths and groups of the rows, shard after shard; ``None`` for rows without groups.
        order: Positions in the whole batch of the rows, shard after shard, int64 [N]; ``None`` if they are in order.
    """

    node_id: str
    group: str
    shards: tuple[ShardRef, ...]
    facts: RowFacts | None = field(default=None, compare=False)
    order: Index | None = field(default=None, compare=False)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return sum(shard.num_rows for shard in self.shards)


def plan_inputs(
    node_id: str, layout: Layout, group: str, num_ranks: int, parents: Sequence[Rows]
) -> tuple[list[list[RankInput]], dict[str, Metric]]:
    """Return the rows that each rank reads of each parent; a rank gets the same rows of all parents.

    Within a group rows stay on their ranks. When they move to another group, rows of different lengths are spread for
    equal work, and others are cut into equal numbers. A group of rows stays whole: nodes compare its rows with each
    other, and not all ranks can communicate.

    Args:
        node_id: Name of the node.
        layout: Layout of the node.
        group: Group that runs the node.
        num_ranks: Number of ranks that share the rows.
        parents: Outputs of the node's parents.

    Returns:
        Inputs by parent and rank. And metrics: if rows were spread by length, ``balance/token_imbalance``, the excess
        of the rank with most tokens over the mean, as a fraction of the mean.

    Raises:
        ValueError: The parents pass on different numbers of rows.
    """
    metrics: dict[str, Metric] = {}
    if layout is Layout.REPLICATE:
        return [replicate(parent.shards, num_ranks) for parent in parents], metrics
    with_rows = [parent for parent in parents if parent.shards]
    if not with_rows:  # the node only waits for its parents
        return [split_evenly((), num_ranks) for _ in parents], metrics
    counts = {parent.node_id: parent.num_rows for parent in with_rows}
    if len(set(counts.values())) > 1:
        raise ValueError(f"node {node_id}: its parents pass on different numbers of rows: {counts}")
    first = with_rows[0]
    if first.group == group and len(first.shards) == num_ranks:
        lead = keep_layout(first.shards, first.order)
    elif num_ranks > 1 and (known := next((each for each in with_rows if each.facts is not None), None)):
        facts = _in_order(known)
        if facts.num_tokens is None:
            lead = cut_between_groups(known.shards, facts.group_id, num_ranks)
        else:
            lead = spread(known.shards, attention_cost(facts.num_tokens), num_ranks, facts.group_id)
            loads = [facts.num_tokens[part.positions].sum() for part in lead]
            metrics["balance/token_imbalance"] = maximum(imbalance(loads))
    else:
        lead = split_evenly(first.shards, num_ranks)
    return [cut_like(lead, parent.shards, parent.order) for parent in parents], metrics


def _in_order(rows: Rows) -> RowFacts:
    """Return the facts of rows in the order of the whole batch."""
    facts = rows.facts
    assert facts is not None
    if rows.order is None:
        return facts
    row_at = np.argsort(rows.order)
    return RowFacts(None if facts.num_tokens is None else facts.num_tokens[row_at], facts.group_id[row_at])


def order_of(inputs: Sequence[RankInput], shards: Sequence[ShardRef]) -> Index | None:
    """Return the positions of a node's output rows: those of its input if the number of rows is the same on each rank.

    Args:
        inputs: Input of each rank.
        shards: Output of each rank.

    Returns:
        Positions, int64 [N]; ``None`` if the rows are in order, or are not those of the input.
    """
    positions = [part.positions for part in inputs]
    if [len(part) for part in positions] != [shard.num_rows for shard in shards]:
        return None
    order = np.concatenate(positions)
    return None if np.array_equal(order, np.arange(len(order))) else order


def join_facts(ranks: Sequence[RowFacts | None]) -> RowFacts | None:
    """Concatenate the facts of all ranks' rows; return ``None`` if a rank has none."""
    known = [facts for facts in ranks if facts is not None]
    if not known or len(known) < len(ranks):
        return None
    tokens = [facts.num_tokens for facts in known if facts.num_tokens is not None]
    groups = np.concatenate([facts.group_id for facts in known])
    return RowFacts(np.concatenate(tokens) if len(tokens) == len(known) else None, groups)

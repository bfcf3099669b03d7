"""Redistribution for equal cost: which rows each rank reads when their order may change.

Costs say what is balanced: ones give every rank as many rows, :func:`~embodyflow.data.partition.attention_cost` as much
work. Rows stay on the Ray node they lie on as far as balance allows; within a rank they keep their order.
"""

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from embodyflow.data.partition import Costs, Index, imbalance, karmarkar_karp
from embodyflow.data.row_plan import RankInput, ShardRef, pieces_at

TOLERANCE = 0.01
"""Share by which a Ray node's load may miss its mean before rows move to another."""


def spread(shards: Sequence[ShardRef], costs: ArrayLike, num_ranks: int, groups: ArrayLike) -> list[RankInput]:
    """Spread the rows of all shards over ranks of nearly equal cost, wherever they lie.

    Unlike :func:`balance` the outcome does not depend on which Ray node anything is on, so a run that goes on with
    replaced workers, perhaps elsewhere, adds up the same numbers in the same order.

    Args:
        shards: the source, its rows counted through in this order.
        costs: [N], of each row, not negative.
        num_ranks: of the target.
        groups: int64 [N], group of each row; the rows of a group go to one rank together.
    """
    unit_of_row = np.unique(np.asarray(groups), return_inverse=True)[1]
    rank_of_unit = karmarkar_karp(np.bincount(unit_of_row, np.asarray(costs, np.float64)), num_ranks)
    return _rank_inputs(shards, rank_of_unit[unit_of_row], num_ranks)


def cut_between_groups(shards: Sequence[ShardRef], groups: ArrayLike, num_ranks: int) -> list[RankInput]:
    """Cut the rows of all shards into ranges of whole groups, of as nearly equal numbers of rows as those allow.

    Where the even cut is between groups it is that of :func:`~embodyflow.data.row_plan.split_evenly`. Groups whose rows
    are not side by side stand where their first row does.

    Args:
        shards: the source, its rows counted through in this order.
        groups: int64 [N], group of each row.
        num_ranks: of the target.
    """
    _, first_row, group_of_row, sizes = np.unique(
        np.asarray(groups), return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first_row)
    ends = np.cumsum([0, *sizes[order]])
    cuts = [np.abs(ends - ends[-1] * rank // num_ranks).argmin() for rank in range(1, num_ranks)]
    rank_of_group = np.empty(len(order), np.int64)
    rank_of_group[order] = np.searchsorted(cuts, np.arange(len(order)), side="right")
    return _rank_inputs(shards, rank_of_group[group_of_row], num_ranks)


def balance(
    shards: Sequence[ShardRef],
    costs: ArrayLike,
    hosts: Sequence[str],
    groups: ArrayLike | None = None,
    tolerance: float = TOLERANCE,
) -> list[RankInput]:
    """Spread the rows of all shards over ranks of nearly equal cost, moving few of them between Ray nodes.

    Also rebalances what a filter left: the shards need not be of equal size, nor be as many as the ranks.

    Args:
        shards: the source, its rows counted through in this order.
        costs: [N], of each row, not negative.
        hosts: the Ray node of each data-parallel rank of the target.
        groups: int64 [N], group of each row; the rows of a group go to one rank together. ``None`` moves rows singly.
        tolerance: share by which a Ray node's load may exceed the mean to spare a move.

    Returns:
        One input per rank, its rows in the source's order; their positions are those in the source.

    Raises:
        ValueError: there are no ranks, or not one cost and group for each row.
    """
    num_rows = sum(shard.num_rows for shard in shards)
    costs = np.asarray(costs, np.float64)
    unit_of_row = _units(num_rows, groups)
    if not hosts or len(costs) != num_rows or len(unit_of_row) != num_rows:
        raise ValueError(
            f"{len(costs)} costs and {len(unit_of_row)} groups for {num_rows} rows on {len(hosts)} ranks: "
            "needs one of each per row and at least one rank"
        )
    num_units = int(unit_of_row.max(initial=-1)) + 1
    unit_costs: Costs = np.bincount(unit_of_row, costs, num_units).astype(np.float64)
    numbers = {name: index for index, name in enumerate(sorted({*hosts, *(shard.host for shard in shards)}))}
    host_of_shard = np.array([numbers[shard.host] for shard in shards], np.int64)
    home = _home_of_units(np.repeat(host_of_shard, [shard.num_rows for shard in shards]), unit_of_row, costs, num_units)
    rank_of_unit = _near_home(unit_costs, home, np.array([numbers[name] for name in hosts]), len(numbers), tolerance)
    loads = np.bincount(rank_of_unit, unit_costs, len(hosts))
    if imbalance(loads) > 2 * tolerance:  # a node's few large units may not level out by themselves
        anywhere = karmarkar_karp(unit_costs, len(hosts))
        if imbalance(np.bincount(anywhere, unit_costs, len(hosts))) < imbalance(loads):
            rank_of_unit = anywhere
    return _rank_inputs(shards, rank_of_unit[unit_of_row], len(hosts))


def _units(num_rows: int, groups: ArrayLike | None) -> Index:
    """Return which rows move together: int64 [N], from 0."""
    return np.arange(num_rows) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]


def _home_of_units(host_of_row: Index, unit_of_row: Index, costs: Costs, num_units: int) -> Index:
    """Return the Ray node of each unit; of a group spread over several, the node of its costliest row."""
    if num_units == len(host_of_row):
        return host_of_row[np.argsort(unit_of_row)]
    home = np.zeros(num_units, np.int64)
    ascending = np.argsort(costs, kind="stable")
    home[unit_of_row[ascending]] = host_of_row[ascending]  # the last to be written is the costliest
    return home


def _near_home(costs: Costs, home: Index, host_of_rank: Index, num_hosts: int, tolerance: float) -> Index:
    """Return the rank of each unit: Ray nodes levelled out by moving few units, then the ranks of each node."""
    share = np.bincount(host_of_rank, minlength=num_hosts) / len(host_of_rank)
    place = _level(costs, home, share, tolerance)
    rank_of_unit = np.empty(len(costs), np.int64)
    for host in range(num_hosts):
        here = np.flatnonzero(place == host)
        if len(here):
            ranks = np.flatnonzero(host_of_rank == host)
            rank_of_unit[here] = ranks[karmarkar_karp(costs[here], len(ranks))]
    return rank_of_unit


def _level(costs: Costs, home: Index, share: Costs, tolerance: float) -> Index:
    """Return the Ray node of each unit such that node ``h`` carries about ``share[h]`` of the cost.

    The costliest units move first, so that few do: at first only where neither node ends on the other side of its
    mean, then wherever the squared deviations become less. Units leave a node without ranks in any case.
    """
    mean = costs.sum() * share
    excess = (np.bincount(home, costs, len(share)) - mean).tolist()
    slack = (tolerance * mean).tolist()
    descending = np.lexsort((-costs, home))  # the units of each node, one node after the other
    bounds = np.searchsorted(home[descending], np.arange(len(share) + 1))
    place = home.copy()
    takers = [(excess[host], host) for host in range(len(share)) if share[host] > 0]
    heapq.heapify(takers)
    for careful in (True, False):
        for host in range(len(share)):
            for unit in descending[bounds[host] : bounds[host + 1]].tolist():
                if share[host] > 0 and excess[host] <= slack[host]:
                    break
                if place[unit] != host:
                    continue
                cost, taker = costs[unit], _lightest(takers, excess)
                gap = -excess[taker]
                fits = cost <= min(excess[host], gap) if careful else cost < excess[host] + gap
                if taker != host and (fits or (share[host] == 0 and not careful)):
                    place[unit] = taker
                    excess[host] -= cost
                    excess[taker] += cost
                    heapq.heapreplace(takers, (excess[taker], taker))
    return place


def _lightest(takers: list[tuple[float, int]], excess: Sequence[float]) -> int:
    """Return the taker of least excess; the heap's entries lag behind where a node gave units away."""
    while takers[0][0] != excess[takers[0][1]]:
        heapq.heapreplace(takers, (excess[takers[0][1]], takers[0][1]))
    return takers[0][1]


def _rank_inputs(shards: Sequence[ShardRef], rank_of_row: Index, num_ranks: int) -> list[RankInput]:
    """Return what each rank reads: its rows in the source's order, shard by shard."""
    by_rank = np.argsort(rank_of_row, kind="stable")
    bounds = np.searchsorted(rank_of_row[by_rank], np.arange(1, num_ranks))
    return [
        RankInput(pieces_at(shards, rows), int(rows[0]) if len(rows) else 0, len(rank_of_row), rows)
        for rows in np.split(by_rank, bounds)
    ]

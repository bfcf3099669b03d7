"""Plans that give ranks rows of equal cost, in any order.

The costs decide what is balanced: ones balance the number of rows, and
:func:`~embodyflow.data.plans.partition.attention_cost` balances the work. Within a rank, rows keep the order of the
source.
"""

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from embodyflow.data.plans.partition import Costs, Index, imbalance, karmarkar_karp
from embodyflow.data.plans.row_plan import RankInput, ShardRef, pieces_at

TOLERANCE = 0.01
"""Share by which the load of a Ray node may differ from the mean before rows move to another node."""


def spread(shards: Sequence[ShardRef], costs: ArrayLike, num_ranks: int, groups: ArrayLike) -> list[RankInput]:
    """Spread the rows of all shards over ranks of nearly equal cost, ignoring where they are stored.

    Unlike :func:`balance`, the plan does not depend on Ray nodes. A run whose workers were replaced, perhaps on other
    machines, therefore sums the same numbers in the same order.

    Args:
        shards: Shards to read; row numbers count through them in this order.
        costs: Cost of each row, [N], at least 0.
        num_ranks: Number of ranks that read the rows.
        groups: Group of each row, int64 [N]; a rank gets whole groups.
    """
    unit_of_row = np.unique(np.asarray(groups), return_inverse=True)[1]
    rank_of_unit = karmarkar_karp(np.bincount(unit_of_row, np.asarray(costs, np.float64)), num_ranks)
    return _rank_inputs(shards, rank_of_unit[unit_of_row], num_ranks)


def cut_between_groups(shards: Sequence[ShardRef], groups: ArrayLike, num_ranks: int) -> list[RankInput]:
    """Split the rows of all shards between groups, so that ranks get as nearly equal numbers of rows as possible.

    If the even split falls between groups, the plan equals that of
    :func:`~embodyflow.data.plans.row_plan.split_evenly`. A group whose rows are not contiguous counts at the position
    of its first row.

    Args:
        shards: Shards to read; row numbers count through them in this order.
        groups: Group of each row, int64 [N].
        num_ranks: Number of ranks that read the rows.
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

    The shards may differ in size and need not be as many as the ranks, so this also rebalances the rows that a filter
    kept.

    Args:
        shards: Shards to read; row numbers count through them in this order.
        costs: Cost of each row, [N], at least 0.
        hosts: Ray node of each data-parallel rank that reads the rows.
        groups: Group of each row, int64 [N]; a rank gets whole groups. ``None`` assigns rows one by one.
        tolerance: Share by which the load of a Ray node may exceed the mean before rows move.

    Returns:
        One input per rank, with its rows and their positions in the order of the source.

    Raises:
        ValueError: There are no ranks, or the number of costs or groups is not the number of rows.
    """
    num_rows = sum(shard.num_rows for shard in shards)
    costs = np.asarray(costs, np.float64)
    unit_of_row = _unit_of_rows(num_rows, groups)
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
    host_of_rank = np.array([numbers[name] for name in hosts])
    rank_of_unit = _assign_near_home(unit_costs, home, host_of_rank, len(numbers), tolerance)
    loads = np.bincount(rank_of_unit, unit_costs, len(hosts))
    if imbalance(loads) > 2 * tolerance:  # a few large units on one node may not balance within it
        anywhere = karmarkar_karp(unit_costs, len(hosts))
        if imbalance(np.bincount(anywhere, unit_costs, len(hosts))) < imbalance(loads):
            rank_of_unit = anywhere
    return _rank_inputs(shards, rank_of_unit[unit_of_row], len(hosts))


def _unit_of_rows(num_rows: int, groups: ArrayLike | None) -> Index:
    """Return the unit of each row, int64 [N] from 0; the rows of a unit move together."""
    return np.arange(num_rows) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]


def _home_of_units(host_of_row: Index, unit_of_row: Index, costs: Costs, num_units: int) -> Index:
    """Return the Ray node of each unit; a group spread over several nodes belongs to that of its costliest row."""
    if num_units == len(host_of_row):
        return host_of_row[np.argsort(unit_of_row)]
    home = np.zeros(num_units, np.int64)
    ascending = np.argsort(costs, kind="stable")
    home[unit_of_row[ascending]] = host_of_row[ascending]  # the costliest row is written last
    return home


def _assign_near_home(costs: Costs, home: Index, host_of_rank: Index, num_hosts: int, tolerance: float) -> Index:
    """Return the rank of each unit: balance the Ray nodes by moving few units, then the ranks within each node."""
    share = np.bincount(host_of_rank, minlength=num_hosts) / len(host_of_rank)
    place = _balance_nodes(costs, home, share, tolerance)
    rank_of_unit = np.empty(len(costs), np.int64)
    for host in range(num_hosts):
        here = np.flatnonzero(place == host)
        if len(here):
            ranks = np.flatnonzero(host_of_rank == host)
            rank_of_unit[here] = ranks[karmarkar_karp(costs[here], len(ranks))]
    return rank_of_unit


def _balance_nodes(costs: Costs, home: Index, share: Costs, tolerance: float) -> Index:
    """Return the Ray node of each unit so that node ``h`` carries about ``share[h]`` of the cost.

    The costliest units move first, so that few units move. The first pass moves a unit only if neither node crosses its
    mean; the second pass moves a unit if that reduces the squared deviations. A node without ranks loses all its units.
    """
    mean = costs.sum() * share
    excess = (np.bincount(home, costs, len(share)) - mean).tolist()
    slack = (tolerance * mean).tolist()
    descending = np.lexsort((-costs, home))  # the units of each node, node by node
    bounds = np.searchsorted(home[descending], np.arange(len(share) + 1))
    place = home.copy()
    takers = [(excess[host], host) for host in range(len(share)) if share[host] > 0]
    heapq.heapify(takers)
    for first_pass in (True, False):
        for host in range(len(share)):
            for unit in descending[bounds[host] : bounds[host + 1]].tolist():
                if share[host] > 0 and excess[host] <= slack[host]:
                    break
                if place[unit] != host:
                    continue
                cost, taker = costs[unit], _lightest(takers, excess)
                gap = -excess[taker]
                fits = cost <= min(excess[host], gap) if first_pass else cost < excess[host] + gap
                if taker != host and (fits or (share[host] == 0 and not first_pass)):
                    place[unit] = taker
                    excess[host] -= cost
                    excess[taker] += cost
                    heapq.heapreplace(takers, (excess[taker], taker))
    return place


def _lightest(takers: list[tuple[float, int]], excess: Sequence[float]) -> int:
    """Return the taker with the least excess, refreshing heap entries that are outdated because a node lost units."""
    while takers[0][0] != excess[takers[0][1]]:
        heapq.heapreplace(takers, (excess[takers[0][1]], takers[0][1]))
    return takers[0][1]


def _rank_inputs(shards: Sequence[ShardRef], rank_of_row: Index, num_ranks: int) -> list[RankInput]:
    """Return the input of each rank: its rows in the order of the source, shard by shard."""
    by_rank = np.argsort(rank_of_row, kind="stable")
    bounds = np.searchsorted(rank_of_row[by_rank], np.arange(1, num_ranks))
    return [
        RankInput(pieces_at(shards, rows), int(rows[0]) if len(rows) else 0, len(rank_of_row), rows)
        for rows in np.split(by_rank, bounds)
    ]

"""Splits into parts: consecutive items into nearly equal numbers, and costs into nearly equal sums."""

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Costs = NDArray[np.float64]
Index = NDArray[np.int64]

_MAX_DIFFERENCED = 256  # items: differencing is slower than filling greedily, and small items fit anywhere


@dataclass(frozen=True)
class Share:
    """A share of items that are dealt out in turns.

    Attributes:
        index: Index of the share, from 0.
        count: Number of shares.
    """

    index: int
    count: int

    def owns(self, item: int) -> bool:
        """Return True if the item with this index belongs to the share."""
        return item % self.count == self.index


def consecutive_share(num_items: int, rank: int, num_parts: int) -> range:
    """Return a rank's consecutive share of items. Shares differ by at most one item, and follow the order of ranks.

    Args:
        num_items: Number of items, at least 0.
        rank: Index of the share, from 0 to ``num_parts - 1``.
        num_parts: Number of shares, at least 1.
    """
    return range(num_items * rank // num_parts, num_items * (rank + 1) // num_parts)


def attention_cost(num_tokens: ArrayLike, hidden_size: int = 4096) -> Costs:
    """Return a transformer's compute for each row, up to a common factor: ``6·h·l + l²``.

    The matrix products of a layer take ``24·l·h²`` operations, its attention takes ``4·l²·h``.

    Args:
        num_tokens: Number of tokens ``l`` of each row, [N].
        hidden_size: Width ``h`` of the transformer.
    """
    lengths = np.asarray(num_tokens, np.float64)
    return 6.0 * hidden_size * lengths + lengths**2


def imbalance(loads: ArrayLike) -> float:
    """Return the excess of the heaviest part over the mean, as a share of the mean; 0 if all parts are equal."""
    loads = np.asarray(loads, np.float64)
    mean = loads.mean()
    return float(loads.max() / mean - 1.0) if mean > 0 else 0.0


def karmarkar_karp(costs: ArrayLike, num_parts: int) -> Index:
    """Assign items to parts of nearly equal cost.

    The largest items are assigned by the differencing method of Karmarkar & Karp (1982). Each item starts as its own
    partition. The two partitions whose parts differ most are merged, the heaviest part of one with the lightest part of
    the other, until one partition is left. The remaining small items go to the lightest part, largest first (Graham,
    1969).

    Args:
        costs: Cost of each item, [N], at least 0. If all costs are equal, the sizes of the parts differ by at most one.
        num_parts: Number of parts, at least 1.

    Returns:
        Part of each item, int64 [N]. The order of the parts has no meaning.
    """
    costs = np.asarray(costs, np.float64)
    order = np.argsort(-costs, kind="stable")
    largest, rest = order[:_MAX_DIFFERENCED], order[_MAX_DIFFERENCED:]
    parts = np.zeros(len(costs), np.int64)
    if num_parts == 1 or len(costs) == 0:
        return parts
    parts[largest], loads = _difference(costs[largest], num_parts)
    lightest = list(zip(loads.tolist(), range(num_parts), strict=True))
    heapq.heapify(lightest)
    filled = []
    for cost in costs[rest].tolist():
        load, part = lightest[0]
        filled.append(part)
        heapq.heapreplace(lightest, (load + cost, part))
    parts[rest] = filled
    return parts


def _difference(costs: Costs, num_parts: int) -> tuple[Index, Costs]:
    """Return the part of each item, int64 [N], and the sum of each part, float64 [k]."""
    partitions = [np.array([cost, *[0.0] * (num_parts - 1)]) for cost in costs]  # sums of the parts, heaviest first
    heap = [(-cost, index) for index, cost in enumerate(costs)]  # by difference, largest first
    heapq.heapify(heap)
    merges = []
    while len(heap) > 1:
        left = heapq.heappop(heap)[1]
        right = heap[0][1]
        sums = partitions[left] + partitions[right][::-1]
        order = np.argsort(-sums, kind="stable")
        sums = sums[order]
        heapq.heapreplace(heap, (sums[-1] - sums[0], len(partitions)))
        merges.append((left, right, order))
        partitions.append(sums)
    numbers = {len(partitions) - 1: np.arange(num_parts)}  # final numbers of each partition's parts
    for merged, (left, right, order) in zip(range(len(partitions) - 1, 0, -1), reversed(merges), strict=False):
        numbers[left] = np.empty(num_parts, np.int64)
        numbers[left][order] = numbers.pop(merged)
        numbers[right] = numbers[left][::-1]
    return np.array([numbers[item][0] for item in range(len(costs))]), partitions[-1]

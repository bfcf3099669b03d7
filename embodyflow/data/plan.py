"""Which rows each rank reads: pure functions of row counts.

The control plane plans with counts alone; the ranks then fetch their rows from the buffers that hold them. The plans
here keep the order of the rows; :mod:`embodyflow.data.balance` gives it up for ranks of equal cost.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Location:
    """Where a buffer put a shard: readers on the same machine look there before they ask.

    Attributes:
        pid: process of the buffer.
        descriptor: its open file that holds the shard.
        key: random; written into the file with the shard, so that a file put to another use is noticed.
    """

    pid: int
    descriptor: int
    key: int


@dataclass(frozen=True)
class ShardRef:
    """Names and numbers of one shard: all the control plane ever sees of it.

    Attributes:
        shard_id: unique in the run: ``<iteration>/<node>/<rank>``.
        host: id of the Ray node whose buffer holds the rows.
        num_rows: rows in the shard.
        location: where the rows were put; a hint, not part of what makes two references equal.
    """

    shard_id: str
    host: str
    num_rows: int
    location: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows ``start`` (inclusive) to ``stop`` (exclusive) of one shard."""

    shard: ShardRef
    start: int
    stop: int

    @property
    def index(self) -> slice:
        """What to index the shard's columns with."""
        return slice(self.start, self.stop)


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Some rows of one shard.

    Attributes:
        shard: that holds them.
        index: int64 [N], which rows, ascending.
    """

    shard: ShardRef
    index: NDArray[np.int64]


Piece: TypeAlias = Slice | Selection


@dataclass(frozen=True)
class RankInput:
    """One rank's part of a batch that is spread over a group.

    Attributes:
        slices: where its rows lie, in order; empty where the parent passed no rows on.
        offset: position of its first row in the whole batch, which is what the ranks read one after the other.
        total_rows: rows of the whole batch.
    """

    slices: tuple[Piece, ...]
    offset: int
    total_rows: int


def keep_layout(shards: Sequence[ShardRef]) -> list[RankInput]:
    """Give rank r the whole of shard r: for nodes that run where their rows already are."""
    total = sum(shard.num_rows for shard in shards)
    inputs, offset = [], 0
    for shard in shards:
        inputs.append(RankInput((Slice(shard, 0, shard.num_rows),), offset, total))
        offset += shard.num_rows
    return inputs


def split_evenly(shards: Sequence[ShardRef], num_ranks: int) -> list[RankInput]:
    """Cut the rows of all shards, in shard order, into one contiguous range per rank.

    Sizes differ by at most one row. The order of the whole batch does not depend on ``num_ranks``, so whatever is
    drawn from a row's position (its mini-batch) does not either.

    Raises:
        ValueError: ``num_ranks`` is not positive.
    """
    if num_ranks < 1:
        raise ValueError(f"num_ranks={num_ranks}: allowed are whole numbers from 1")
    total = sum(shard.num_rows for shard in shards)
    bounds = [total * rank // num_ranks for rank in range(num_ranks + 1)]
    return [RankInput(_cut(shards, start, stop), start, total) for start, stop in itertools.pairwise(bounds)]


def cut_like(parts: Sequence[RankInput], shards: Sequence[ShardRef]) -> list[RankInput]:
    """Cut the rows of ``shards`` at the same positions as another batch of as many rows was cut."""
    stops = [*(part.offset for part in parts[1:]), parts[0].total_rows]
    total = sum(shard.num_rows for shard in shards)
    return [
        RankInput(_cut(shards, part.offset, stop), part.offset, total) for part, stop in zip(parts, stops, strict=True)
    ]


def replicate(shards: Sequence[ShardRef], num_ranks: int) -> list[RankInput]:
    """Give every rank all rows of all shards, in shard order."""
    total = sum(shard.num_rows for shard in shards)
    return [RankInput(_cut(shards, 0, total), 0, total)] * num_ranks


def for_tensor_parallel(parts: Sequence[RankInput], size: int) -> list[RankInput]:
    """Give each data-parallel part to the ``size`` consecutive ranks that compute it together."""
    return [part for part in parts for _ in range(size)]


def _cut(shards: Sequence[ShardRef], start: int, stop: int) -> tuple[Slice, ...]:
    slices, first = [], 0
    for shard in shards:
        low, high = max(start - first, 0), min(stop - first, shard.num_rows)
        if low < high:
            slices.append(Slice(shard, low, high))
        first += shard.num_rows
    # A rank without rows still reads an empty slice: it needs the columns to take part in its group's collectives.
    return tuple(slices) or tuple(Slice(shard, 0, 0) for shard in shards[:1])

"""Which rows each rank reads: pure functions of row counts.

The control plane plans with numbers alone; the ranks then fetch their rows from the buffers that hold them. The plans
here give ranks consecutive rows; those of :mod:`embodyflow.data.balance` give them any, for ranks of equal cost.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Index: TypeAlias = NDArray[np.int64]


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
    index: Index


Piece: TypeAlias = Slice | Selection


@dataclass(frozen=True, eq=False)
class RowFacts:
    """What a plan may know of rows besides their number.

    Attributes:
        num_tokens: int64 [N], of each row; ``None`` of rows that do not differ in length.
        group_id: int64 [N], of each row.
    """

    num_tokens: Index | None
    group_id: Index


@dataclass(frozen=True)
class RankInput:
    """One rank's part of a batch that is spread over a group.

    Attributes:
        slices: where its rows lie, in order; empty where the parent passed no rows on.
        offset: position of its first row in the whole batch.
        total_rows: rows of the whole batch.
        order: int64 [N], positions of its rows in the whole batch where they are not consecutive.
    """

    slices: tuple[Piece, ...]
    offset: int
    total_rows: int
    order: Index | None = field(default=None, compare=False)

    @property
    def positions(self) -> Index:
        """Positions of its rows in the whole batch, int64 [N]: what is drawn by them is drawn alike on any layout."""
        if self.order is not None:
            return self.order
        num_rows = sum(len(range(*piece.index.indices(piece.shard.num_rows))) for piece in self._consecutive())
        return np.arange(self.offset, self.offset + num_rows)

    def _consecutive(self) -> Iterator[Slice]:
        for piece in self.slices:
            assert isinstance(piece, Slice), "rows that are picked have their order"
            yield piece


def keep_layout(shards: Sequence[ShardRef], order: Index | None = None) -> list[RankInput]:
    """Give rank r the whole of shard r: for nodes that run where their rows already are.

    Args:
        shards: the source.
        order: int64 [N], positions in the whole batch of the rows that the shards hold; ``None`` as they stand.
    """
    total = sum(shard.num_rows for shard in shards)
    inputs, offset = [], 0
    for shard in shards:
        mine = None if order is None else order[offset : offset + shard.num_rows]
        inputs.append(RankInput((Slice(shard, 0, shard.num_rows),), offset, total, mine))
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
    return [RankInput(pieces_at(shards, np.arange(*bound)), bound[0], total) for bound in itertools.pairwise(bounds)]


def cut_like(parts: Sequence[RankInput], shards: Sequence[ShardRef], order: Index | None = None) -> list[RankInput]:
    """Give each rank the same positions of a batch as it has of another of as many rows.

    Args:
        parts: of the other batch.
        shards: of this one.
        order: as :func:`keep_layout` takes it.
    """
    row_at = None if order is None else np.argsort(order)
    cut = []
    for part in parts:
        rows = np.sort(part.positions if row_at is None else row_at[part.positions])
        positions = rows if order is None else order[rows]
        cut.append(replace(part, slices=pieces_at(shards, rows), order=positions))
    return cut


def replicate(shards: Sequence[ShardRef], num_ranks: int) -> list[RankInput]:
    """Give every rank all rows of all shards, in shard order."""
    total = sum(shard.num_rows for shard in shards)
    return [RankInput(pieces_at(shards, np.arange(total)), 0, total)] * num_ranks


def for_tensor_parallel(parts: Sequence[RankInput], size: int) -> list[RankInput]:
    """Give each data-parallel part to the ``size`` consecutive ranks that compute it together."""
    return [part for part in parts for _ in range(size)]


def pieces_at(shards: Sequence[ShardRef], rows: Index) -> tuple[Piece, ...]:
    """Return where rows lie.

    Args:
        shards: that hold them.
        rows: int64 [N], ascending, counted through the shards.

    Returns:
        A piece for each shard that holds some; for no rows an empty one, which still has the columns that a rank needs
        to take part in its group's collectives. Nothing where there are no shards.
    """
    if not shards:
        return ()
    counts = np.array([shard.num_rows for shard in shards], np.int64)
    ends = np.cumsum(counts)
    holder = np.searchsorted(ends, rows, side="right")
    starts = np.flatnonzero(np.diff(holder, prepend=-1))
    pieces: list[Piece] = []
    for start, stop in zip(starts, np.append(starts, len(rows))[1:], strict=True):
        index = int(holder[start])
        mine = rows[start:stop] - (ends[index] - counts[index])
        if mine[-1] - mine[0] == stop - start - 1:
            pieces.append(Slice(shards[index], int(mine[0]), int(mine[-1]) + 1))
        else:
            pieces.append(Selection(shards[index], mine))
    return tuple(pieces) or (Slice(shards[0], 0, 0),)

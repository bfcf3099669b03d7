"""Redistribution plans: the rows that each rank reads, as pure functions of row counts.

The control plane plans with row counts alone; the ranks then fetch their rows from the buffers that hold them. The
plans here give each rank consecutive rows; those of :mod:`embodyflow.data.plans.balance` give ranks rows of equal cost.
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
    """Location of a shard in its buffer; readers on the same machine read there before they ask the buffer.

    Attributes:
        pid: Process id of the buffer.
        descriptor: File descriptor, in that process, of the file that holds the shard.
        key: Random key, written into the file with the shard; it differs once the file holds something else.
        is_spilled: Whether the file is on disk.
    """

    pid: int
    descriptor: int
    key: int
    is_spilled: bool = False


@dataclass(frozen=True)
class ShardRef:
    """Reference to a shard: all that the control plane knows of it.

    Attributes:
        shard_id: Id of the shard, unique in the run: ``<iteration>/<node>/<rank>``.
        host: Id of the Ray node whose buffer holds the rows.
        num_rows: Number of rows in the shard.
        location: Location of the rows, a hint that equality ignores.
    """

    shard_id: str
    host: str
    num_rows: int
    location: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class WeightsRef:
    """Reference to the published weights of one version.

    Attributes:
        own: Weights that training changes, and the trainer's probe.
        shared: Weights that training leaves alone, which several versions have in common; ``None`` without any.
    """

    own: ShardRef
    shared: ShardRef | None = None

    @property
    def shard_ids(self) -> list[str]:
        """Ids of all shards."""
        return [shard.shard_id for shard in (self.own, self.shared) if shard is not None]


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows ``start`` (inclusive) to ``stop`` (exclusive) of one shard."""

    shard: ShardRef
    start: int
    stop: int

    @property
    def index(self) -> slice:
        """Index of the rows in the shard's columns."""
        return slice(self.start, self.stop)


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Any rows of one shard.

    Attributes:
        shard: Shard that holds the rows.
        index: Row numbers within the shard, int64 [N], ascending.
    """

    shard: ShardRef
    index: Index


Piece: TypeAlias = Slice | Selection


@dataclass(frozen=True, eq=False)
class RowFacts:
    """Facts about rows that a plan may use besides their number.

    Attributes:
        num_tokens: Number of tokens of each row, int64 [N]; ``None`` if rows do not differ in length.
        group_id: Group of each row, int64 [N].
    """

    num_tokens: Index | None
    group_id: Index


@dataclass(frozen=True)
class RankInput:
    """One rank's part of a batch that is spread over a worker group.

    Attributes:
        slices: Pieces of shards with the rank's rows, in order; empty if the parent passed on no shards.
        offset: Position of the first row in the whole batch.
        total_rows: Number of rows in the whole batch.
        order: Positions of the rows in the whole batch, int64 [N]; ``None`` if they are consecutive.
    """

    slices: tuple[Piece, ...]
    offset: int
    total_rows: int
    order: Index | None = field(default=None, compare=False)

    @property
    def positions(self) -> Index:
        """Positions of the rows in the whole batch, int64 [N].

        Random draws that depend on positions are the same on any layout.
        """
        if self.order is not None:
            return self.order
        num_rows = sum(len(range(*piece.index.indices(piece.shard.num_rows))) for piece in self._consecutive())
        return np.arange(self.offset, self.offset + num_rows)

    def _consecutive(self) -> Iterator[Slice]:
        for piece in self.slices:
            assert isinstance(piece, Slice), "rows of a Selection need RankInput.order"
            yield piece


def keep_layout(shards: Sequence[ShardRef], order: Index | None = None) -> list[RankInput]:
    """Give rank r all rows of shard r, for nodes that run where their rows already are.

    Args:
        shards: Shards to read, one per rank.
        order: Positions of the shards' rows in the whole batch, int64 [N]; ``None`` if they are consecutive.
    """
    total = sum(shard.num_rows for shard in shards)
    inputs, offset = [], 0
    for shard in shards:
        mine = None if order is None else order[offset : offset + shard.num_rows]
        inputs.append(RankInput((Slice(shard, 0, shard.num_rows),), offset, total, mine))
        offset += shard.num_rows
    return inputs


def split_evenly(shards: Sequence[ShardRef], num_ranks: int) -> list[RankInput]:
    """Split the rows of all shards, in shard order, into one contiguous range per rank.

    Sizes differ by at most one row. The order of the whole batch does not depend on ``num_ranks``, so neither do draws
    that depend on a row's position, such as its mini-batch.

    Raises:
        ValueError: ``num_ranks`` is less than 1.
    """
    if num_ranks < 1:
        raise ValueError(f"num_ranks={num_ranks}: allowed are whole numbers from 1")
    total = sum(shard.num_rows for shard in shards)
    bounds = [total * rank // num_ranks for rank in range(num_ranks + 1)]
    return [RankInput(pieces_at(shards, np.arange(*bound)), bound[0], total) for bound in itertools.pairwise(bounds)]


def cut_like(parts: Sequence[RankInput], shards: Sequence[ShardRef], order: Index | None = None) -> list[RankInput]:
    """Give each rank the same positions of this batch as it has of another batch of the same size.

    Args:
        parts: Inputs of the ranks for the other batch.
        shards: Shards of this batch.
        order: Positions of the shards' rows in the whole batch, int64 [N]; ``None`` if they are consecutive.
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
    """Return the pieces of shards that hold rows.

    Args:
        shards: Shards that hold the rows.
        rows: Row numbers, int64 [N], ascending, counted through the shards.

    Returns:
        One piece for each shard that holds some of the rows. If there are no rows, one empty piece, which still has the
        columns that a rank needs to take part in its group's collectives. If there are no shards, no pieces.
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

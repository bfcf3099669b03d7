"""The full weights of a sharded model, gathered on rank 0 in buckets, so that they never exist there a second time.

All ranks cut the weights into the same buckets: in order of their names, consecutive rows of one or several weights. A
rank sends what it has of a bucket as bytes from CPU to CPU, and rank 0 puts the pieces of all ranks together.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from embodyflow.data.parts import Part, outline
from embodyflow.data.ragged import Array

BUCKET_BYTES = 16 * 2**20
"""Largest size of a bucket, unless a single row is larger."""

Box: TypeAlias = tuple[slice, ...]
"""The range of a tensor's indices that a rank has, in each dimension."""


@dataclass(frozen=True, eq=False)
class _Rows:
    """Consecutive rows of a weight, and the ranks that have some of their values, with the box that each has of it."""

    name: str
    start: int
    stop: int
    owners: Sequence[tuple[int, Box]]


class ShardedWeights:
    """The weights of a model as they lie on the ranks. To build it is a collective if any weight is sharded.

    Args:
        state: The model's sharded state. A weight that is no DTensor is whole on every rank.
        bucket_bytes: Largest size of a bucket.
    """

    def __init__(self, state: Mapping[str, torch.Tensor], bucket_bytes: int = BUCKET_BYTES) -> None:
        self._bucket_bytes = bucket_bytes
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        self.outlines = {name: outline(tuple(value.shape), dtype_of(value)) for name, value in state.items()}
        self._local = {name: _at_least_1d(_local(value)) for name, value in state.items()}
        self._owners = {name: [(0, _whole(_at_least_1d_shape(value.shape)))] for name, value in state.items()}
        sharded = {name: value for name, value in state.items() if isinstance(value, DTensor)}
        if sharded:
            self._owners |= _owners_of(sharded)

    def parts(self, names: Iterable[str] | None = None) -> Iterator[Part]:
        """Yield the values of all weights, or of some, in order of their names on rank 0; yield nothing on other ranks.

        A part may be a view of the weights themselves. Every rank must exhaust the iterator.
        """
        for bucket in self._buckets(sorted(self.outlines if names is None else names)):
            if self._rank == 0:
                yield from self._receive(bucket)
            else:
                self._send(bucket)

    def whole(self, name: str) -> torch.Tensor | None:
        """Return one full weight on the CPU on rank 0, and ``None`` on other ranks; a collective."""
        values = [part.values for part in self.parts([name])]
        if self._rank != 0:
            return None
        joined = values[0] if len(values) == 1 else np.concatenate(values)
        return torch.from_numpy(joined).view(self.outlines[name].shape)

    def _buckets(self, names: Iterable[str]) -> Iterator[list[_Rows]]:
        bucket, free = list[_Rows](), self._bucket_bytes
        for name in names:
            array = self.outlines[name]
            num_rows = array.shape[0] if array.ndim else 1
            row_bytes = array.nbytes // max(num_rows, 1)
            per_bucket = max(self._bucket_bytes // max(row_bytes, 1), 1)
            for start in range(0, max(num_rows, 1), per_bucket):
                rows = _Rows(name, start, min(start + per_bucket, num_rows), self._owners[name])
                size = (rows.stop - start) * row_bytes
                if size > free and bucket:
                    yield bucket
                    bucket, free = [], self._bucket_bytes
                bucket.append(rows)
                free -= size
        if bucket:
            yield bucket

    def _send(self, bucket: list[_Rows]) -> None:
        """Send this rank's pieces of a bucket to rank 0."""
        mine = [self._piece(rows, box) for rows in bucket for rank, box in _inside(rows) if rank == self._rank]
        if mine:
            dist.send(torch.cat([piece.contiguous().view(-1).view(torch.uint8) for piece in mine]), dst=0)

    def _receive(self, bucket: list[_Rows]) -> Iterator[Part]:
        """Put the pieces of all ranks together."""
        sizes = Counter[int]()
        for rows in bucket:
            sizes.update({rank: self._num_bytes(rows, box) for rank, box in _inside(rows)})
        sent = {rank: torch.empty(sizes[rank], dtype=torch.uint8) for rank in sorted(sizes) if rank != 0}
        for rank, content in sent.items():
            dist.recv(content, src=rank)
        taken = Counter[int]()
        for rows in bucket:
            pieces = list[tuple[Box, Array]]()
            for rank, box in _inside(rows):
                if rank == 0:
                    pieces.append((box, self._piece(rows, box).numpy()))
                else:
                    dtype = self.outlines[rows.name].dtype
                    pieces.append((box, np.ndarray(_shape(box), dtype, sent[rank].numpy(), taken[rank])))
                    taken[rank] += self._num_bytes(rows, box)
            yield self._part(rows, pieces)

    def _part(self, rows: _Rows, pieces: list[tuple[Box, Array]]) -> Part:
        """Return the values of rows from the pieces that the ranks have of them."""
        array = self.outlines[rows.name]
        row_shape = array.shape[1:]
        if len(pieces) == 1:  # the only one has all values
            values = np.require(pieces[0][1], requirements=("C", "A"))
        else:
            values = np.empty((rows.stop - rows.start, *row_shape), array.dtype)
            for (side, *others), piece in pieces:
                values[(slice(side.start - rows.start, side.stop - rows.start), *others)] = piece
        return Part(rows.name, rows.start * math.prod(row_shape), values.reshape(-1))

    def _num_bytes(self, rows: _Rows, box: Box) -> int:
        return math.prod(_shape(box)) * self.outlines[rows.name].itemsize

    def _piece(self, rows: _Rows, box: Box) -> torch.Tensor:
        """Return this rank's values in a box of the full weight."""
        own = next(own for rank, own in rows.owners if rank == self._rank)
        first = box[0].start - own[0].start
        return self._local[rows.name][first : first + box[0].stop - box[0].start].cpu()


def dtype_of(tensor: torch.Tensor) -> np.dtype[np.generic]:
    """Return the dtype of the array that has a tensor's values."""
    return torch.empty(0, dtype=tensor.dtype).numpy().dtype


def _owners_of(sharded: Mapping[str, DTensor]) -> dict[str, list[tuple[int, Box]]]:
    """Return the ranks that have distinct boxes of each weight; a collective."""
    boxes: dict[str, Box] = {}
    for name, value in sharded.items():
        shape, offset = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
        ranges = zip(_at_least_1d_shape(shape), offset or (0,), strict=True)
        boxes[name] = tuple(slice(first, first + size) for size, first in ranges)
    gathered: list[dict[str, Box]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, boxes)
    owners: dict[str, list[tuple[int, Box]]] = {}
    for name in sharded:
        first_with: dict[tuple[tuple[int, int], ...], tuple[int, Box]] = {}
        for rank, each in enumerate(gathered):  # replicas come from the first rank that has one
            first_with.setdefault(tuple((side.start, side.stop) for side in each[name]), (rank, each[name]))
        owners[name] = list(first_with.values())
    return owners


def _inside(rows: _Rows) -> Iterator[tuple[int, Box]]:
    """Yield the ranks that have values of the rows, with the box of each; the first side is cut to the rows."""
    for rank, (side, *others) in rows.owners:
        box = (slice(max(side.start, rows.start), min(side.stop, rows.stop)), *others)
        if all(each.start < each.stop for each in box):
            yield rank, box


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def _at_least_1d(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.ndim else tensor.view(1)


def _at_least_1d_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape) or (1,)


def _whole(shape: tuple[int, ...]) -> Box:
    return tuple(slice(0, size) for size in shape)


def _shape(box: Box) -> tuple[int, ...]:
    return tuple(side.stop - side.start for side in box)

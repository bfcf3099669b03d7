"""Columns that arrive in parts: their outline is known before, and no process holds them whole."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from embodyflow.data.ragged import Array
from embodyflow.data.table_packing import Packing
from embodyflow.data.tables import digest_head


@dataclass(frozen=True, eq=False)
class Part:
    """Consecutive values of one column.

    Attributes:
        name: Name of the column.
        start: Index of the first value in the flattened column.
        values: The values, a contiguous array [N]; a view may be valid only until the next part is asked for.
    """

    name: str
    start: int
    values: Array


@dataclass(frozen=True, eq=False)
class FullWeights:
    """The full weights of a model that its ranks share, which rank 0 gets in parts.

    Attributes:
        outlines: An array with the shape and dtype of each weight, on all ranks.
        parts: Their values on rank 0, in order of their names; nothing on other ranks. Every rank must exhaust it.
        frozen: Names of the weights that training leaves alone.
    """

    outlines: Mapping[str, Array]
    parts: Iterator[Part]
    frozen: frozenset[str] = frozenset()


def outline(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """Return an array that has a shape and a dtype, and the memory of a single value."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def in_parts(columns: Mapping[str, Array]) -> Iterator[Part]:
    """Yield each column as one part."""
    for name, array in columns.items():
        yield Part(name, 0, np.ascontiguousarray(array).reshape(-1))


class PartsDigest:
    """The digest of columns that pass by in parts, equal to :func:`~embodyflow.data.tables.digest_of` of the whole.

    Args:
        outlines: An array with the shape and dtype of each column.
    """

    def __init__(self, outlines: Mapping[str, Array]) -> None:
        self._outlines, self._sha = outlines, hashlib.sha256()
        self._awaited, self._name, self._position = sorted(outlines), "", 0

    def watch(self, parts: Iterable[Part]) -> Iterator[Part]:
        """Yield all parts as they are.

        Raises:
            ValueError: See :meth:`add` and :meth:`hexdigest`.
        """
        for part in parts:
            self.add(part)
            yield part
        self.hexdigest()

    def add(self, part: Part) -> None:
        """Take in the next part.

        Raises:
            ValueError: It does not follow the one before, from the first to the last value in order of the names.
        """
        if self._position == self._size and self._awaited:
            self._name, self._position = self._awaited.pop(0), 0
            self._sha.update(digest_head(self._name, self._outlines[self._name]))
        if (part.name, part.start) != (self._name, self._position):
            awaited = f"{self._name!r} from {self._position} on"
            raise ValueError(f"got {part.name!r} from value {part.start} on; next is {awaited}")
        self._sha.update(part.values.view(np.uint8).data)
        self._position += part.values.size

    @property
    def _size(self) -> int:
        return self._outlines[self._name].size if self._name else 0

    def hexdigest(self) -> str:
        """Return the SHA-256 of all columns.

        Raises:
            ValueError: Values are missing.
        """
        if self._awaited or self._position != self._size:
            missing = f"{len(self._awaited)} columns are missing"
            raise ValueError(f"the parts end at value {self._position} of {self._name!r}; {missing}")
        return self._sha.hexdigest()


def write_parts(descriptor: int, packing: Packing, parts: Iterable[Part]) -> None:
    """Write all of a packed table to a file, but for the key that marks the content as complete.

    Args:
        descriptor: The file.
        packing: Layout of the table.
        parts: The values of all columns, in any order.

    Raises:
        ValueError: The parts are fewer or more than the table's values.
    """
    _write(descriptor, packing.head, packing.head_offset)
    written = 0
    for part in parts:
        offset = packing.offset_of(part.name) + part.start * part.values.itemsize
        _write(descriptor, part.values.view(np.uint8).data, offset)
        written += part.values.nbytes
    if written != packing.num_value_bytes:
        raise ValueError(f"the parts have {written} bytes; the table has {packing.num_value_bytes}")


def _write(descriptor: int, content: bytes | memoryview, offset: int) -> None:
    rest = memoryview(content)
    while rest:
        done = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[done:], offset + done

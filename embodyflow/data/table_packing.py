"""Layout of a table in a contiguous block of bytes: a segment of shared memory, a spill file or a file of rows.

::

    bytes 0–7     key of the content; 0 while it is being written and after it was invalidated
    bytes 8–15    length of the schema in bytes
    bytes 16–     schema: JSON, a list of [name, dtype, shape of the values, number of lengths or null]
    then          the values of each column in that order, then its lengths if it is ragged; 64-byte aligned

Arrays are copied in by memcpy and read in place; nothing is pickled.
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping

import numpy as np

from embodyflow.data.plans.row_plan import Piece
from embodyflow.data.ragged import Array, Ragged
from embodyflow.data.tables import Column, Table, num_rows_of, select

KEY_BYTES = 8
_SCHEMA = 16  # offset of the schema
_ALIGNMENT = 64

Memory = bytearray | memoryview  # or an mmap, which type checkers do not accept as a buffer


class Packing:
    """A table to write to memory.

    Args:
        table: Columns of the table; :meth:`write` copies them.

    Attributes:
        num_bytes: Size of the packed table in bytes.
        num_value_bytes: Size of the columns' values and lengths in bytes.
        head_offset: Offset of :attr:`head`.
    """

    head_offset = KEY_BYTES

    def __init__(self, table: Mapping[str, Column]) -> None:
        self._names = list(table)
        self._arrays = [array for column in table.values() for array in _arrays_of(column)]
        schema = [_describe(name, column) for name, column in table.items()]
        self._schema = json.dumps(schema, separators=(",", ":")).encode()
        self._offsets, end = [], _SCHEMA + len(self._schema)
        for array in self._arrays:
            self._offsets.append(_aligned(end))
            end = self._offsets[-1] + array.nbytes
        self.num_bytes = end
        self.num_value_bytes = sum(array.nbytes for array in self._arrays)

    @property
    def head(self) -> bytes:
        """What lies between the key and the values."""
        return len(self._schema).to_bytes(_SCHEMA - KEY_BYTES, sys.byteorder) + self._schema

    def offset_of(self, name: str) -> int:
        """Return the offset of a column's values; no column may be ragged."""
        return self._offsets[self._names.index(name)]

    def write(self, memory: Memory, key: int) -> None:
        """Copy the columns to memory, then write the key, which marks the content as complete."""
        memory[KEY_BYTES : _SCHEMA + len(self._schema)] = self.head
        for array, offset in zip(self._arrays, self._offsets, strict=True):
            np.ndarray(array.shape, array.dtype, memory, offset)[...] = array
        np.ndarray(1, np.int64, memory)[0] = key


def unpack(memory: Memory) -> Table:
    """Return the columns as views of the memory."""
    schema_bytes = int(np.ndarray(1, np.int64, memory, KEY_BYTES)[0])
    end = _SCHEMA + schema_bytes
    table: Table = {}
    for name, dtype, shape, num_rows in json.loads(bytes(memory[_SCHEMA:end])):
        start = _aligned(end)
        values: Array = np.ndarray(shape, np.dtype(dtype), memory, start)
        end = start + values.nbytes
        if num_rows is None:
            table[name] = values
        else:
            start = _aligned(end)
            table[name] = Ragged(values, np.ndarray(num_rows, np.int64, memory, start))
            end = start + num_rows * 8
    return table


def unpack_rows(memory: Memory, piece: Piece) -> Table:
    """Return the rows of a piece from its shard's memory; a slice gives views.

    Raises:
        RuntimeError: The shard was replaced by one whose number of rows differs from the plan's.
    """
    table, shard = unpack(memory), piece.shard
    if num_rows_of(table) != shard.num_rows:
        raise RuntimeError(f"shard {shard.shard_id} has {num_rows_of(table)} rows; the plan expects {shard.num_rows}")
    return select(table, piece.index)


def _arrays_of(column: Column) -> Iterator[Array]:
    if isinstance(column, Ragged):
        yield column.values
        yield column.lengths
    else:
        yield column


def _describe(name: str, column: Column) -> tuple[str, str, tuple[int, ...], int | None]:
    values = column.values if isinstance(column, Ragged) else column
    return name, values.dtype.str, values.shape, len(column) if isinstance(column, Ragged) else None


def _aligned(offset: int) -> int:
    return math.ceil(offset / _ALIGNMENT) * _ALIGNMENT

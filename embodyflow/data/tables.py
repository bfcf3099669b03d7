"""Tables: rows as plain arrays, as buffers hold them, and functions that select, join and digest rows.

A table maps names to columns. A column is an array whose first dimension is the rows, or a
:class:`~embodyflow.data.ragged.Ragged`. This module does not import torch.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast

import numpy as np

from embodyflow.data.ragged import Array, Ragged, RowIndex, join_ragged

Column: TypeAlias = Array | Ragged
Table: TypeAlias = dict[str, Column]


def num_rows_of(columns: Mapping[str, Column]) -> int:
    """Return the number of rows.

    Raises:
        ValueError: Columns differ in their number of rows; the message names them.
    """
    counts = {name: len(array) for name, array in columns.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(f"columns of one batch have different numbers of rows: {counts}")
    return next(iter(counts.values()), 0)


def select(columns: Mapping[str, Column], index: RowIndex) -> Table:
    """Return the rows at ``index``; a slice does not copy."""
    return {name: column[index] for name, column in columns.items()}


def concatenate(parts: Sequence[Table]) -> Table:
    """Concatenate the rows of all parts, in order.

    Raises:
        ValueError: The parts have different columns.
    """
    names = {tuple(sorted(part)) for part in parts}
    if len(names) != 1:
        raise ValueError(f"parts of one batch have different columns: {sorted(names)}")
    if len(parts) == 1:
        return parts[0]
    return {name: _join([part[name] for part in parts]) for name in parts[0]}


def _join(parts: Sequence[Column]) -> Column:
    if isinstance(parts[0], Ragged):
        return join_ragged(cast(Sequence[Ragged], parts))
    return np.concatenate(cast(Sequence[Array], parts))


def join_columns(batches: Sequence[Table]) -> Table:
    """Join the tables of several parents of one node: match rows by ``uid`` and unite columns.

    The first parent determines the order of the rows. A column of several parents must hold the same values in each.

    Raises:
        ValueError: The parents hold different rows, or a column differs between parents.
    """
    joined = dict(batches[0])
    for other in batches[1:]:
        order = _positions(cast(Array, joined["uid"]), cast(Array, other["uid"]))
        for name, column in (other if order is None else select(other, order)).items():
            if name in joined and not _equal(joined[name], column):
                raise ValueError(f"column {name!r} differs between two parents of one node")
            joined[name] = column
    return joined


def _positions(uids: Array, others: Array) -> Array | None:
    """Return the position of each of ``uids`` in ``others``; ``None`` if both have the same order."""
    sorter, other_sorter = np.argsort(uids, kind="stable"), np.argsort(others, kind="stable")
    in_order = uids[sorter]
    if not np.array_equal(in_order, others[other_sorter]) or (in_order[1:] == in_order[:-1]).any():
        raise ValueError(
            "parents of one node hold different rows; a join needs the same uids from each parent, without duplicates"
        )
    if np.array_equal(uids, others):
        return None
    positions = np.empty(len(uids), np.int64)
    positions[sorter] = other_sorter
    return positions


def _equal(left: Column, right: Column) -> bool:
    if isinstance(left, Ragged) or isinstance(right, Ragged):
        return (
            isinstance(left, Ragged)
            and isinstance(right, Ragged)
            and _equal(left.lengths, right.lengths)
            and _equal(left.values, right.values)
        )
    return np.array_equal(left, right, equal_nan=left.dtype.kind == right.dtype.kind == "f")


def digest_of(columns: Mapping[str, Column]) -> str:
    """Return the SHA-256 of the names, dtypes, shapes and bytes of the columns, in order of their names."""
    sha = hashlib.sha256()
    for name in sorted(columns):
        column = columns[name]
        if isinstance(column, Ragged):
            _update(sha, f"{name} values", column.values)
            _update(sha, f"{name} lengths", column.lengths)
        else:
            _update(sha, name, column)
    return sha.hexdigest()


def digest_head(name: str, array: Array) -> bytes:
    """Return the bytes that go into :func:`digest_of` before those of an array."""
    return f"{name}|{array.dtype.str}|{array.shape or (1,)}|".encode()


def _update(sha: "hashlib._Hash", name: str, array: Array) -> None:
    array = np.ascontiguousarray(array)
    sha.update(digest_head(name, array))
    sha.update(array.view(np.uint8).data if array.ndim else array.tobytes())

"""Batches as plain arrays: what a buffer holds and how rows are cut, joined and digested.

A batch travels as ``dict[str, numpy.ndarray]``, one array per column with the rows first: Ray moves such a dict
without copying on a node, where a pickled TensorDict is copied tensor by tensor.
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from tensordict import TensorDict

Columns = dict[str, np.ndarray]


def to_columns(batch: TensorDict) -> Columns:
    """Return the batch's columns as contiguous arrays ``[N, ...]`` on the CPU."""
    return {str(name): np.ascontiguousarray(value.detach().cpu().numpy()) for name, value in sorted(batch.items())}


def to_batch(columns: Columns) -> TensorDict:
    """Return a TensorDict over the columns.

    Arrays that came out of a buffer are read-only and shared with every other reader, so they are copied: a node
    function may write to its batch.
    """
    num_rows = num_rows_of(columns)
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in columns.items()}
    return TensorDict(tensors, batch_size=[num_rows])


def num_rows_of(columns: Mapping[str, np.ndarray]) -> int:
    """Return the number of rows.

    Raises:
        ValueError: columns differ in their number of rows; the message names them.
    """
    counts = {name: len(array) for name, array in columns.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(f"columns of one batch have different numbers of rows: {counts}")
    return next(iter(counts.values()), 0)


def concatenate(parts: Sequence[Columns]) -> Columns:
    """Join parts row-wise, in order.

    Raises:
        ValueError: the parts do not have the same columns.
    """
    names = {tuple(sorted(part)) for part in parts}
    if len(names) != 1:
        raise ValueError(f"parts of one batch have different columns: {sorted(names)}")
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def join_columns(batches: Sequence[Columns]) -> Columns:
    """Join what several parents pass to one child: rows matched by ``uid``, columns united.

    The first parent gives the order of the rows. A column that several parents carry must hold the same values.

    Raises:
        ValueError: the parents hold different rows, or a column differs between them.
    """
    joined = dict(batches[0])
    for other in batches[1:]:
        position = {uid: i for i, uid in enumerate(other["uid"].tolist())}
        uids = joined["uid"].tolist()
        if len(position) != len(uids) or sorted(uids) != sorted(other["uid"].tolist()):
            raise ValueError("parents of one node hold different rows: join needs the same uids on each side")
        order = np.array([position[uid] for uid in uids], dtype=np.int64)
        for name, array in other.items():
            rows = array[order]
            if name in joined and not np.array_equal(joined[name], rows, equal_nan=rows.dtype.kind == "f"):
                raise ValueError(f"column {name!r} differs between two parents of one node")
            joined[name] = rows
    return joined


def digest_of(columns: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 over names, dtypes, shapes and bytes of the columns, in name order."""
    sha = hashlib.sha256()
    for name in sorted(columns):
        array = np.ascontiguousarray(columns[name])
        sha.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        sha.update(array.view(np.uint8).data if array.ndim else array.tobytes())
    return sha.hexdigest()

"""Conversion between batches and tables.

A batch travels as a table, because arrays are written and read at the speed of memory, while a pickled TensorDict is
copied tensor by tensor.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from embodyflow.data.padding import to_padded, to_ragged
from embodyflow.data.ragged import Ragged
from embodyflow.data.tables import Column, Table, concatenate, num_rows_of

Columns: TypeAlias = dict[str, np.ndarray]


def to_columns(batch: TensorDict) -> Table:
    """Return the columns of a batch as contiguous arrays ``[N, ...]`` on the CPU.

    Jagged nested tensors become ragged columns.
    """
    return {str(name): _to_column(batch[name].detach().cpu()) for name in sorted(batch.keys())}


def _to_column(tensor: Tensor) -> Column:
    if not tensor.is_nested:
        return np.ascontiguousarray(tensor.numpy())
    rows: Any = tensor.contiguous()
    return Ragged(rows.values().numpy(), np.diff(rows.offsets().numpy()).astype(np.int64))


def to_batch(columns: Mapping[str, Column]) -> TensorDict:
    """Return a TensorDict over the columns; a ragged column becomes a jagged nested tensor.

    A node function may write to its batch. Read-only arrays are shared with other readers, so they are copied here.
    Arrays mapped from a buffer on the same machine are writable; the kernel copies each page on the first write.
    """
    num_rows = num_rows_of(columns)
    return TensorDict({name: _to_tensor(column) for name, column in columns.items()}, batch_size=[num_rows])


def _to_tensor(column: Column) -> Tensor:
    if isinstance(column, Ragged):
        offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(column.lengths)]))
        return torch.nested.nested_tensor_from_jagged(_to_tensor(column.values), offsets)
    return torch.from_numpy(column if column.flags.writeable else column.copy())


def join_rows(parts: Sequence[TensorDict]) -> TensorDict:
    """Return the rows of all parts, in order; language rows are padded to the longest."""
    return to_batch(to_padded(concatenate([to_ragged(to_columns(part)) for part in parts])))

"""Columns whose rows differ in length: the values of all rows, and the length of each row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
RowIndex: TypeAlias = slice | NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Ragged:
    """A column without padding, so a rank moves only the tokens of its own rows.

    Attributes:
        values: Values of all rows, row after row, ``[sum of lengths, ...]``.
        lengths: Number of values of each row, int64 [N], at least 0.
    """

    values: Array
    lengths: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.lengths.sum() != len(self.values):
            raise ValueError(f"lengths sum to {self.lengths.sum()}, but there are {len(self.values)} values")

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        """Size of values and lengths in bytes."""
        return self.values.nbytes + self.lengths.nbytes

    @overload
    def __getitem__(self, index: int) -> Array: ...

    @overload
    def __getitem__(self, index: RowIndex) -> "Ragged": ...

    def __getitem__(self, index: int | RowIndex) -> "Array | Ragged":
        """Return the values of a row, or the rows of a slice with step 1 (both without a copy) or of an index array."""
        ends = np.cumsum(self.lengths)
        if isinstance(index, int):
            return self.values[ends[index] - self.lengths[index] : ends[index]]
        lengths = self.lengths[index]
        if isinstance(index, slice):
            start = int(ends[index.start - 1]) if index.start else 0
            return Ragged(self.values[start : start + int(lengths.sum())], lengths)
        firsts = (ends - self.lengths)[index]
        positions = np.arange(lengths.sum()) + np.repeat(firsts - (np.cumsum(lengths) - lengths), lengths)
        return Ragged(self.values[positions], lengths)


def join_ragged(parts: Sequence[Ragged]) -> Ragged:
    """Return the rows of all parts, in order."""
    return Ragged(np.concatenate([part.values for part in parts]), np.concatenate([part.lengths for part in parts]))

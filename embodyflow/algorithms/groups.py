"""Statistics of groups: siblings that share one prompt or initial state."""

import torch
from torch import Tensor


class Groups:
    """Statistics per group, for any group ids in any order of rows.

    Attributes:
        index: Group of each row, int64 [B], from 0 to G − 1.
        sizes: Number of rows in each group, int64 [G].
    """

    def __init__(self, group_ids: Tensor) -> None:
        """Index the rows.

        Args:
            group_ids: Id of each row's group, int64 [B].
        """
        _, self.index, self.sizes = torch.unique(group_ids, return_inverse=True, return_counts=True)

    def __len__(self) -> int:
        return len(self.sizes)

    def mean(self, rows: Tensor) -> Tensor:
        """Return the mean of ``rows`` [B] in each group, float64 [G]."""
        sums = rows.new_zeros(len(self), dtype=torch.float64).index_add(0, self.index, rows.double())
        return sums / self.sizes

    def std(self, rows: Tensor) -> Tensor:
        """Return the sample standard deviation (n − 1) in each group, float64 [G]; 0 for a single row."""
        deviations = rows.double() - self.mean(rows)[self.index]
        squares = self.mean(deviations.square()) * self.sizes
        return (squares / (self.sizes - 1).clamp(min=1)).sqrt()

    def mixed(self, rows: Tensor) -> Tensor:
        """Return a mask of the groups whose rows differ, bool [G]; exact, unlike ``std > 0``."""
        start = rows.new_zeros(len(self))
        lowest = start.scatter_reduce(0, self.index, rows, "amin", include_self=False)
        highest = start.scatter_reduce(0, self.index, rows, "amax", include_self=False)
        return lowest != highest

    @property
    def single(self) -> Tensor:
        """Mask of the groups with a single row, bool [G]."""
        return self.sizes == 1

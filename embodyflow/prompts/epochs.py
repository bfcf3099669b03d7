"""Endless shuffled epochs over the rows of a dataset, without state."""

import numpy as np
from numpy.typing import NDArray

from embodyflow.seeding import derive_rng


def shuffled_rows(seed: int, num_rows: int, first: int, count: int) -> NDArray[np.int64]:
    """Return the rows at positions ``first`` to ``first + count`` of endless shuffled epochs, int64 [count].

    Each epoch has its own order. The rows depend on seed and position alone, so a run that resumes needs no saved state
    (its position is iteration × rows per iteration), and the number of workers changes nothing.
    """
    epochs, places = np.divmod(np.arange(first, first + count), num_rows)
    rows = np.empty(count, np.int64)
    for epoch in np.unique(epochs).tolist():
        order = derive_rng(seed, "prompts", epoch).permutation(num_rows)
        rows[epochs == epoch] = order[places[epochs == epoch]]
    return rows

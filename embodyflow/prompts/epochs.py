"""A shuffled order of rows that goes on for ever, from wherever it left off."""

import numpy as np
from numpy.typing import NDArray

from embodyflow.seeding import derive_rng


def shuffled_rows(seed: int, num_rows: int, first: int, count: int) -> NDArray[np.int64]:
    """Return the rows at ``count`` positions from ``first`` on, int64, of endless passes over all rows.

    Each pass has its own order. A function of the position alone: who knows it (iteration × rows of an iteration) needs
    no state, and the number of workers changes nothing.
    """
    epochs, places = np.divmod(np.arange(first, first + count), num_rows)
    rows = np.empty(count, np.int64)
    for epoch in np.unique(epochs).tolist():
        order = derive_rng(seed, "prompts", epoch).permutation(num_rows)
        rows[epochs == epoch] = order[places[epochs == epoch]]
    return rows

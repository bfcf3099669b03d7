"""Batches in a shuffled order that goes on for ever, from where it left off."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from embodyflow.errors import ConfigError
from embodyflow.seeding import derive_rng, derive_seed

T = TypeVar("T")


def in_epochs(seed: int, num_rows: int, first: int, count: int) -> NDArray[np.int64]:
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


class ShuffledLoader(Generic[T]):
    """Endless batches of some rows: a rank's slice of a dataset, or the prompts of a split.

    Every epoch passes over all rows once, shuffled by (seed, epoch, rank); a batch may go from one into the next.

    Args:
        rows: in the order of their files.
        batch_size: rows of a batch.
        seed: the run's seed; ``None`` keeps the order.
        rank: data-parallel rank.

    Raises:
        ConfigError: there are no rows.
    """

    def __init__(self, rows: Sequence[T], batch_size: int, seed: int | None, rank: int = 0) -> None:
        if not len(rows):
            raise ConfigError("a loader needs at least one row")
        self._rows, self._batch_size = rows, batch_size
        self._seed, self._rank = seed, rank
        self._position = 0

    def __len__(self) -> int:
        """Return the number of rows of an epoch."""
        return len(self._rows)

    def next_batch(self) -> list[T]:
        """Return the next ``batch_size`` rows."""
        first, num_rows = self._position, len(self._rows)
        self._position += self._batch_size
        if self._seed is None:
            return [self._rows[position % num_rows] for position in range(first, self._position)]
        seed = derive_seed(self._seed, "loader", self._rank)
        return [self._rows[row] for row in in_epochs(seed, num_rows, first, self._batch_size).tolist()]

    def state_dict(self) -> dict[str, Any]:
        """Return where the next row is: plain numbers."""
        return {"position": self._position, "seed": self._seed, "num_rows": len(self._rows)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the row that was next when the state was taken.

        Raises:
            ConfigError: the state is of another seed or number of rows; its position would be another row.
        """
        for name, ours in (("seed", self._seed), ("num_rows", len(self._rows))):
            if state[name] != ours:
                raise ConfigError(f"the loader's state is of {name}={state[name]}, its dataset has {name}={ours}")
        self._position = state["position"]

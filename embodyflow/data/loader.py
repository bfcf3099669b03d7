"""Batches in a shuffled order that goes on for ever, from where it left off."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from embodyflow.errors import ConfigError
from embodyflow.seeding import derive_rng

T = TypeVar("T")


class ShuffledLoader(Generic[T]):
    """Endless batches of some rows: a rank's slice of a dataset, or the prompts of a split.

    Every epoch passes over all rows once, shuffled by (seed, epoch, rank); a batch may go from one into the next. Which
    rows stand where is a function of the position alone, so a caller that knows its position (iteration × batch size)
    needs no state: :meth:`batch_at`.

    Args:
        rows: in the order of their files.
        batch_size: rows of a batch.
        seed: the run's seed; ``None`` keeps the order.
        rank: data-parallel rank; ranks that hold the same rows and are to agree on them all say 0.

    Raises:
        ConfigError: there are no rows.
    """

    def __init__(self, rows: Sequence[T], batch_size: int, seed: int | None, rank: int = 0) -> None:
        if not len(rows):
            raise ConfigError("a loader needs at least one row")
        self._rows, self._batch_size = rows, batch_size
        self._seed, self._rank = seed, rank
        self._position = 0
        self._epoch, self._order = 0, self._shuffled(0)

    def __len__(self) -> int:
        """Return the number of rows of an epoch."""
        return len(self._rows)

    def next_batch(self) -> list[T]:
        """Return the next ``batch_size`` rows."""
        batch = self.batch_at(self._position)
        self._position += self._batch_size
        return batch

    def batch_at(self, position: int) -> list[T]:
        """Return the ``batch_size`` rows from a position on, counted from the first row of the first epoch."""
        return [self._row_at(position + offset) for offset in range(self._batch_size)]

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

    def _row_at(self, position: int) -> T:
        epoch, place = divmod(position, len(self._rows))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._shuffled(epoch)
        return self._rows[self._order[place]]

    def _shuffled(self, epoch: int) -> NDArray[np.int64]:
        if self._seed is None:
            return np.arange(len(self._rows))
        return derive_rng(self._seed, epoch, "loader", self._rank).permutation(len(self._rows))

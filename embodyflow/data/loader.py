"""A rank's rows of a dataset, batch after batch, from where it left off."""

from collections.abc import Sequence
from typing import Any

from embodyflow.data.datasets import Extent, Row
from embodyflow.errors import ConfigError
from embodyflow.seeding import derive_rng


class PartitionedLoader:
    """Endless batches of one rank's rows.

    Every epoch passes over all rows once, shuffled by (seed, epoch, rank); a batch may go from one into the next.

    Args:
        extents: this rank's part, see :func:`embodyflow.data.datasets.partition`; only this is read.
        columns: of each row.
        batch_size: rows of a batch.
        seed: the run's seed; ``None`` keeps the order of the files.
        rank: data-parallel rank.

    Raises:
        ConfigError: a column is missing or a file is broken; the message names file and line.
    """

    def __init__(
        self, extents: Sequence[Extent], columns: Sequence[str], batch_size: int, seed: int | None, rank: int
    ) -> None:
        self._rows: list[Row] = [row for extent in extents for row in extent.read(columns)]
        self._batch_size = batch_size
        self._seed, self._rank = seed, rank
        self._epoch, self._position = 0, 0
        self._order = self._shuffled()

    def __len__(self) -> int:
        """Return the number of rows of an epoch."""
        return len(self._rows)

    def next_batch(self) -> list[Row]:
        """Return the next ``batch_size`` rows."""
        return [self._next_row() for _ in range(self._batch_size)]

    def state_dict(self) -> dict[str, Any]:
        """Return where the next row is: plain numbers."""
        return {"epoch": self._epoch, "position": self._position, "seed": self._seed, "num_rows": len(self._rows)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the row that was next when the state was taken.

        Raises:
            ConfigError: the state is of another seed or number of rows; its position would be another row.
        """
        for name, ours in (("seed", self._seed), ("num_rows", len(self._rows))):
            if state[name] != ours:
                raise ConfigError(f"the loader's state is of {name}={state[name]}, its dataset has {name}={ours}")
        self._epoch, self._position = state["epoch"], state["position"]
        self._order = self._shuffled()

    def _next_row(self) -> Row:
        if self._position == len(self._rows):
            self._epoch, self._position = self._epoch + 1, 0
            self._order = self._shuffled()
        row = self._rows[self._order[self._position]]
        self._position += 1
        return row

    def _shuffled(self) -> list[int]:
        if self._seed is None:
            return list(range(len(self._rows)))
        order: list[int] = (
            derive_rng(self._seed, self._epoch, "loader", self._rank).permutation(len(self._rows)).tolist()
        )
        return order

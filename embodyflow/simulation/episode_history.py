"""Histories of episodes: seed, options and actions, from which a bit-identical replay is possible."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FIRST_CAPACITY = 64
"""Chunks per environment that the recorder can hold initially; it grows when an episode is longer."""


@dataclass(frozen=True)
class EpisodeHistory:
    """History of a running episode.

    Attributes:
        seed: Seed of the reset.
        options: Options of the reset.
        actions: Actions executed since the reset, ``[T, *action_shape]`` in the action space's dtype.
    """

    seed: int
    options: dict[str, Any] | None
    actions: Array


class EpisodeRecorder:
    """Records the seed, options and actions of every environment's episode.

    Args:
        names: Names of the N environments for errors.
        chunk_shape: Shape of an environment's action chunk, ``[C, *action_shape]``.
        dtype: Dtype of the actions.

    Attributes:
        open: Flags of environments whose episode has begun and not ended, bool ``[N]``, also during a step in flight.
    """

    def __init__(self, names: Sequence[str], chunk_shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self._names = names
        self.open = np.zeros(len(names), np.bool_)
        self._chunks = np.zeros((len(names), FIRST_CAPACITY, *chunk_shape), dtype)
        self._num_chunks = np.zeros(len(names), np.int64)
        self._seeds: list[int | None] = [None] * len(names)
        self._options: list[dict[str, Any] | None] = [None] * len(names)

    def begin(self, rows: Array, seeds: Sequence[int | None], options: Sequence[dict[str, Any] | None]) -> None:
        """Start new histories for environments that are about to be reset; their episodes are not open yet."""
        self.open[rows] = False
        self._num_chunks[rows] = 0
        for row, seed, option in zip(rows.tolist(), seeds, options, strict=True):
            self._seeds[row], self._options[row] = seed, option

    def stage(self, rows: Array, chunks: Array) -> None:
        """Store the action chunks ``[n, C, ...]`` that environments are about to execute."""
        try:
            self._chunks[rows, self._num_chunks[rows]] = chunks
        except IndexError:  # the array is full; checking its size each time would cost more
            self._chunks = np.concatenate([self._chunks, np.zeros_like(self._chunks)], axis=1)
            self.stage(rows, chunks)

    def commit(self, rows: Array, still_open: Array) -> None:
        """Add executed chunks to the histories; set ``open`` to ``still_open``, bool ``[n]``."""
        self._num_chunks[rows] += 1
        self.open[rows] = still_open

    def is_seeded(self, row: int) -> bool:
        """Return True if an environment's episode can be replayed."""
        return self._seeds[row] is not None

    def history(self, row: int) -> EpisodeHistory:
        """Return the history of an environment's episode, without a staged chunk.

        Raises:
            ValueError: The environment was reset without a seed.
        """
        seed = self._seeds[row]
        if seed is None:
            raise ValueError(f"{self.describe(row)}: was reset without a seed, so its episode cannot be replayed")
        chunks = self.chunks(row)
        return EpisodeHistory(seed, self._options[row], chunks.reshape(-1, *chunks.shape[2:]).copy())

    def chunks(self, row: int) -> Array:
        """Return the chunks executed in an environment's episode, ``[T / C, C, *action_shape]``."""
        return self._chunks[row, : self._num_chunks[row]]

    def staged(self, row: int) -> Array:
        """Return the staged chunk of an environment, ``[C, *action_shape]``."""
        return self._chunks[row, self._num_chunks[row]]

    def describe(self, row: int) -> str:
        """Return an environment's name, seed and options, for errors."""
        options = self._options[row]
        return f"{self._names[row]}, seed {self._seeds[row]}" + (f", options {options}" if options else "")

"""An episode is its seed, its options and its actions: enough to have it again, to the last bit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FIRST_CAPACITY = 64
"""Chunks per environment that there is room for before an episode shows itself longer."""


@dataclass(frozen=True)
class EpisodeHistory:
    """A running episode up to now.

    Attributes:
        seed: of its reset.
        options: of its reset.
        actions: ``[T, *action_shape]``, executed since the reset, in the action space's dtype.
    """

    seed: int
    options: dict[str, Any] | None
    actions: Array


class EpisodeRecorder:
    """Writes down how environments came to be where they are.

    Args:
        names: what each of the N environments is called in errors.
        chunk_shape: of an environment's action chunk, ``[C, *action_shape]``.
        dtype: of the actions.

    Attributes:
        open: bool ``[N]``, whose episode has begun and is not over; those of a step under way included.
    """

    def __init__(self, names: Sequence[str], chunk_shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self._names = names
        self.open = np.zeros(len(names), np.bool_)
        self._chunks = np.zeros((len(names), FIRST_CAPACITY, *chunk_shape), dtype)
        self._num_chunks = np.zeros(len(names), np.int64)
        self._seeds: list[int | None] = [None] * len(names)
        self._options: list[dict[str, Any] | None] = [None] * len(names)

    def begin(self, rows: Array, seeds: Sequence[int | None], options: Sequence[dict[str, Any] | None]) -> None:
        """Note that environments are about to be reset; their episodes are open only after that."""
        self.open[rows] = False
        self._num_chunks[rows] = 0
        for row, seed, option in zip(rows.tolist(), seeds, options, strict=True):
            self._seeds[row], self._options[row] = seed, option

    def order(self, rows: Array, chunks: Array) -> None:
        """Note the action chunks ``[n, C, ...]`` that environments are about to execute."""
        try:
            self._chunks[rows, self._num_chunks[rows]] = chunks
        except IndexError:  # no room: dearer to ask for each time
            self._chunks = np.concatenate([self._chunks, np.zeros_like(self._chunks)], axis=1)
            self.order(rows, chunks)

    def executed(self, rows: Array, open_still: Array) -> None:
        """Note that the chunks ordered have been executed, and whose episodes go on, bool ``[n]``."""
        self._num_chunks[rows] += 1
        self.open[rows] = open_still

    def is_seeded(self, row: int) -> bool:
        """Say whether an environment's episode can be had again."""
        return self._seeds[row] is not None

    def history(self, row: int) -> EpisodeHistory:
        """Return an environment's episode, without what is ordered and not executed.

        Raises:
            ValueError: it was reset without a seed.
        """
        seed = self._seeds[row]
        if seed is None:
            raise ValueError(f"{self.describe(row)}: was reset without a seed, so nobody can have its episode again")
        chunks = self.chunks(row)
        return EpisodeHistory(seed, self._options[row], chunks.reshape(-1, *chunks.shape[2:]).copy())

    def chunks(self, row: int) -> Array:
        """Return the chunks executed in an environment's episode ``[T / C, C, *action_shape]``."""
        return self._chunks[row, : self._num_chunks[row]]

    def ordered(self, row: int) -> Array:
        """Return the chunk that an environment was to execute and has not."""
        return self._chunks[row, self._num_chunks[row]]

    def describe(self, row: int) -> str:
        """Return an environment's name, seed and options, for errors."""
        options = self._options[row]
        return f"{self._names[row]}, seed {self._seeds[row]}" + (f", options {options}" if options else "")

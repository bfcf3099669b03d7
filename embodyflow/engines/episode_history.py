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
    """Writes down how N environments came to be where they are.

    Args:
        num_envs: N.
        chunk_shape: of an environment's action chunk, ``[C, *action_shape]``.
        dtype: of the actions.
    """

    def __init__(self, num_envs: int, chunk_shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self._chunks = np.zeros((num_envs, FIRST_CAPACITY, *chunk_shape), dtype)
        self._num_chunks = np.zeros(num_envs, np.int64)
        self._seeds: list[int | None] = [None] * num_envs
        self._options: list[dict[str, Any] | None] = [None] * num_envs

    def begin(self, rows: Array, seeds: Sequence[int | None], options: Sequence[dict[str, Any] | None]) -> None:
        """Note that environments were reset."""
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

    def executed(self, rows: Array) -> None:
        """Note that the chunks ordered have been executed."""
        self._num_chunks[rows] += 1

    def repeat(self, row: int, history: EpisodeHistory) -> None:
        """Note that an environment's episode is another one's again.

        Raises:
            ValueError: that was played in chunks of another size.
        """
        chunk_size = self._chunks.shape[2]
        if len(history.actions) % chunk_size:
            raise ValueError(f"an episode of {len(history.actions)} actions is not one of chunks of {chunk_size}")
        self.begin(np.array([row]), [history.seed], [history.options])
        for chunk in history.actions.reshape(-1, *self._chunks.shape[2:]):
            self.order(np.array([row]), chunk[None])
            self.executed(np.array([row]))

    def history(self, row: int) -> EpisodeHistory:
        """Return an environment's running episode.

        Raises:
            ValueError: it was reset without a seed.
        """
        seed = self._seeds[row]
        if seed is None:
            raise ValueError(f"environment {row} was reset without a seed: nobody can have its episode again")
        chunks = self._chunks[row, : self._num_chunks[row]]
        return EpisodeHistory(seed, self._options[row], chunks.reshape(-1, *chunks.shape[2:]).copy())

"""Priorities of transitions, and draws in proportion to them (Schaul et al. 2016, arXiv:1511.05952).

A binary tree holds sums of priorities, so a draw and a change take steps in the logarithm of the number of transitions.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embodyflow.config.robots.prioritized import PrioritizedConfig
from embodyflow.errors import DamageError

PRIORITIES_FILE = "priorities.npy"
"""Name of the file in a checkpoint."""
SMALLEST_ERROR = 1e-6
"""Addition to each error, so that no transition is never drawn."""

Indices = NDArray[np.int64]
Floats = NDArray[np.float64]


class Priorities:
    """Priorities of the newest transitions of a run.

    A transition that has not been trained on has the largest priority of all so far.

    Args:
        settings: Exponents of draws and weights.
        capacity: Number of newest transitions.
    """

    def __init__(self, settings: PrioritizedConfig, capacity: int) -> None:
        self._settings, self._capacity = settings, capacity
        self._num_leaves = 1 << (capacity - 1).bit_length()
        self._tree = np.zeros(2 * self._num_leaves)  # node n has the children 2n and 2n + 1
        self._largest, self._length = 1.0, 0

    def extend(self, length: int) -> None:
        """Add transitions, so that there have been ``length`` in all; the oldest ones give way."""
        first = max(self._length, length - self._capacity)
        self._length = length
        self._set(np.arange(first, length), np.full(length - first, self._largest))

    def update(self, indices: Indices, errors: NDArray[np.floating]) -> None:
        """Set the priorities of transitions by their errors, ``[n]``; the last one counts if an index occurs twice."""
        priorities = (np.abs(errors.astype(np.float64)) + SMALLEST_ERROR) ** self._settings.exponent
        self._largest = max(self._largest, float(priorities.max(initial=0.0)))
        self._set(indices, priorities)

    def sample(self, rng: np.random.Generator, size: int) -> tuple[Indices, Floats]:
        """Draw transitions, one from each of ``size`` parts of equal priority.

        Returns:
            Indices, int64 ``[size]``, and importance weights, float64 ``[size]``, the largest of which is 1.
        """
        points = (np.arange(size) + rng.random(size)) / size * self._tree[1]
        nodes = np.ones(size, np.int64)
        while nodes[0] < self._num_leaves:
            left = self._tree[2 * nodes]
            # A rounded sum must not lead to leaves that have no transition.
            is_right = (points >= left) & (self._tree[2 * nodes + 1] > 0)
            points = np.where(is_right, points - left, points)
            nodes = 2 * nodes + is_right
        last = self._length - 1
        indices = last - (last - (nodes - self._num_leaves)) % self._capacity
        weights = self._tree[nodes] ** -self._settings.correction
        return indices, weights / weights.max()

    def _set(self, indices: Indices, priorities: Floats) -> None:
        nodes = self._num_leaves + indices % self._capacity
        self._tree[nodes] = priorities
        while nodes.size and nodes[0] > 1:
            nodes = np.unique(nodes // 2)
            self._tree[nodes] = self._tree[2 * nodes] + self._tree[2 * nodes + 1]

    def save(self, folder: Path) -> None:
        """Write the priorities to a checkpoint."""
        leaves = self._tree[self._num_leaves :][: min(self._length, self._capacity)]
        np.save(folder / PRIORITIES_FILE, np.concatenate([[self._length, self._largest], leaves]))

    def load(self, folder: Path) -> None:
        """Take over the priorities of a checkpoint.

        Raises:
            DamageError: The file is damaged.
        """
        path = folder / PRIORITIES_FILE
        try:
            (length, self._largest), leaves = np.split(np.load(path, allow_pickle=False), [2])
        except (OSError, ValueError, EOFError) as error:
            raise DamageError(f"{path}: is damaged: {error}") from error
        self._length = int(length)
        if len(leaves) != min(self._length, self._capacity):
            raise DamageError(f"{path}: has {len(leaves)} priorities of {min(self._length, self._capacity)}")
        self._tree[:] = 0
        self._set(np.arange(len(leaves)), leaves)

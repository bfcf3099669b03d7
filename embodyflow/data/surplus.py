"""Rows that one iteration gathered beyond its need, kept for the next."""

import numpy as np

from embodyflow.data.metrics import Metric, last, total
from embodyflow.data.tables import Table, concatenate, num_rows_of, select


class SurplusRows:
    """Groups of rows that wait to be trained on, oldest first, as long as they are not too stale.

    Groups stay whole: their advantages are relative to their siblings.

    Args:
        max_staleness: versions of the policy that a row may lie behind when it is trained on; 0 keeps nothing.
    """

    def __init__(self, max_staleness: int) -> None:
        self._max_staleness = max_staleness
        self._waiting: list[Table] = []  # one group each
        self._num_expired = 0

    def __len__(self) -> int:
        """Return the number of rows that wait."""
        return sum(num_rows_of(group) for group in self._waiting)

    def add(self, rows: Table) -> None:
        """Append rows with the columns ``group_id`` and ``policy_version``; a group must come whole."""
        group_ids = np.asarray(rows["group_id"])
        _, firsts = np.unique(group_ids, return_index=True)
        self._waiting += [select(rows, np.flatnonzero(group_ids == group_ids[first])) for first in np.sort(firsts)]

    def take(self, num_rows: int, policy_version: int) -> Table | None:
        """Return the oldest groups that are fresh enough, at most ``num_rows`` rows; ``None`` where there are none.

        Groups that have become too stale are dropped and counted.
        """
        fresh = [group for group in self._waiting if self._staleness(group, policy_version) <= self._max_staleness]
        self._num_expired += len(self) - sum(num_rows_of(group) for group in fresh)
        taken, kept, room = [], [], num_rows
        for group in fresh:
            if num_rows_of(group) <= room:
                taken.append(group)
                room -= num_rows_of(group)
            else:
                kept.append(group)
        self._waiting = kept
        return concatenate(taken) if taken else None

    def metrics(self) -> dict[str, Metric]:
        """Return how many rows wait now, and how many were dropped since the last call."""
        expired, self._num_expired = self._num_expired, 0
        return {"surplus/num_waiting": last(len(self)), "surplus/num_expired": total(expired)}

    @staticmethod
    def _staleness(group: Table, policy_version: int) -> int:
        return policy_version - int(np.min(np.asarray(group["policy_version"])))

"""Surplus rows: rows that an iteration sampled beyond its need and keeps for the next."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Index = NDArray[np.int64]


def draw_surplus(group_id: ArrayLike, policy_version: ArrayLike, num_rows: int, oldest: int) -> tuple[Index, Index]:
    """Return the waiting rows to train on now and those that keep waiting; drop rows that are too stale.

    Groups stay whole, since advantages are relative to the group. Groups that have waited longest go first.

    Args:
        group_id: Group of each row, int64 [N], in the order in which the rows began to wait.
        policy_version: Version of the weights that sampled each row, int64 [N].
        num_rows: Maximum number of rows to take.
        oldest: Smallest version that is not too stale.

    Returns:
        Positions of the rows taken and of the rows left, both ascending, int64.
    """
    groups, versions = np.asarray(group_id), np.asarray(policy_version)
    taken, left = [], []
    _, firsts = np.unique(groups, return_index=True)
    for first in np.sort(firsts).tolist():
        members = np.flatnonzero(groups == groups[first])
        if versions[members].min() < oldest:
            continue
        if len(members) <= num_rows:
            taken.append(members)
            num_rows -= len(members)
        else:
            left.append(members)
    return _ascending(taken), _ascending(left)


def _ascending(parts: list[Index]) -> Index:
    return np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))

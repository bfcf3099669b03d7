"""Rows that one iteration gathered beyond its need, kept for the next."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Index = NDArray[np.int64]


def draw_surplus(group_id: ArrayLike, policy_version: ArrayLike, num_rows: int, oldest: int) -> tuple[Index, Index]:
    """Say which of some waiting rows are trained on now, and which go on waiting; the others have become too stale.

    Groups stay whole, since their advantages are relative to their siblings, and those that have waited longest go
    first.

    Args:
        group_id: int64 [N].
        policy_version: int64 [N], of the weights that acted; the rows stand in the order they began to wait.
        num_rows: how many are wanted at most.
        oldest: the smallest version of a row that is not too stale.

    Returns:
        Positions taken and positions left, ascending.
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

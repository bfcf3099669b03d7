"""Filters of rows by group. Each returns a mask, bool [B], of the rows to keep; a group is kept or dropped whole."""

from torch import Tensor

from embodyflow.algorithms.groups import Groups
from embodyflow.algorithms.masked import Metrics


def keep_mixed(metric: Tensor, group_ids: Tensor) -> Tensor:
    """Drop groups whose rows all have the same metric, which have no advantage; keep single rows.

    The rule of DAPO's dynamic sampling (Yu et al. 2025, arXiv:2503.14476, section 3.2).

    Args:
        metric: Success or sum of rewards, [B] of any dtype.
        group_ids: Group of each row, int64 [B].
    """
    groups = Groups(group_ids)
    return (groups.mixed(_as_numbers(metric)) | groups.single)[groups.index]


def keep_within(metric: Tensor, group_ids: Tensor, low: float, high: float) -> Tensor:
    """Keep groups whose mean metric lies in [low, high], both ends included.

    Args:
        metric: Usually success, [B] of any dtype.
        group_ids: Group of each row, int64 [B].
        low: Lower bound.
        high: Upper bound.
    """
    groups = Groups(group_ids)
    mean = groups.mean(_as_numbers(metric))
    return ((mean >= low) & (mean <= high))[groups.index]


def keep_untruncated(truncated: Tensor, group_ids: Tensor) -> Tensor:
    """Drop groups in which the step or length limit truncated any row.

    Args:
        truncated: Truncated rows, bool [B].
        group_ids: Group of each row, int64 [B].
    """
    groups = Groups(group_ids)
    return (groups.mean(truncated) == 0)[groups.index]


def group_metrics(success: Tensor, group_ids: Tensor) -> Metrics:
    """Return the fractions of groups with mixed outcomes, only successes and only failures.

    Only mixed groups have advantages, so ``groups/mixed_fraction`` says how much there is to learn.

    Args:
        success: Successful rows, bool [B].
        group_ids: Group of each row, int64 [B].
    """
    groups = Groups(group_ids)
    rate, count = groups.mean(success), group_ids.new_tensor(len(groups))
    return {
        "groups/mixed_fraction": (((rate > 0) & (rate < 1)).sum(), count),
        "groups/all_success_fraction": ((rate == 1).sum(), count),
        "groups/all_failure_fraction": ((rate == 0).sum(), count),
    }


def _as_numbers(metric: Tensor) -> Tensor:
    return metric if metric.is_floating_point() else metric.double()

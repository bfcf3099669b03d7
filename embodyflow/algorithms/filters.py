"""Which rows are worth training on: whole groups, kept or dropped. Filters return bool [B], true to keep."""

from torch import Tensor

from embodyflow.algorithms.groups import Groups
from embodyflow.algorithms.masked import Metrics


def keep_mixed(metric: Tensor, group_ids: Tensor) -> Tensor:
    """Drop groups whose rows all have the same metric: they carry no advantage. Single rows are kept.

    The rule of DAPO's dynamic sampling (Yu et al. 2025, arXiv:2503.14476, section 3.2).

    Args:
        metric: [B] of any dtype: success, or the row's sum of rewards.
        group_ids: int64 [B].
    """
    groups = Groups(group_ids)
    return (groups.mixed(_as_numbers(metric)) | groups.single)[groups.index]


def keep_within(metric: Tensor, group_ids: Tensor, low: float, high: float) -> Tensor:
    """Keep groups whose mean metric lies in [low, high], both ends included.

    Args:
        metric: [B] of any dtype: success as a rule.
        group_ids: int64 [B].
        low: lower bound.
        high: upper bound.
    """
    groups = Groups(group_ids)
    mean = groups.mean(_as_numbers(metric))
    return ((mean >= low) & (mean <= high))[groups.index]


def keep_untruncated(truncated: Tensor, group_ids: Tensor) -> Tensor:
    """Drop groups in which any row was cut off by the step or length limit.

    Args:
        truncated: bool [B].
        group_ids: int64 [B].
    """
    groups = Groups(group_ids)
    return (groups.mean(truncated) == 0)[groups.index]


def group_metrics(success: Tensor, group_ids: Tensor) -> Metrics:
    """Return the fractions of groups with mixed outcomes, only successes, only failures.

    Learning from outcomes lives on the mixed ones: watch ``groups/mixed_fraction``.

    Args:
        success: bool [B].
        group_ids: int64 [B].
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

"""Sums and means over the tokens of a mask, on one rank or over all.

Whatever needs a statistic of the *whole* batch takes an :data:`AllReduce`; with the default it sees one rank.
The sums that cross ranks are float64, so that the result does not depend on how rows are spread.
"""

from collections.abc import Callable

import torch
from torch import Tensor

AllReduce = Callable[[Tensor], Tensor]
"""Returns the elementwise sum of a tensor over all ranks; called by every rank in the same order."""

Metrics = dict[str, tuple[Tensor, Tensor]]
"""Metric name to ``(sum, count)``, detached scalars: add both over micro-batches and ranks, then divide."""


def one_rank(tensor: Tensor) -> Tensor:
    """The :data:`AllReduce` of a single rank: its own tensor."""
    return tensor


def row_mean(tensor: Tensor, mask: Tensor) -> Tensor:
    """Return each row's mean over its tokens, 0 for a row without any.

    Args:
        tensor: float [B, L], zero outside the mask.
        mask: bool [B, L].

    Returns:
        float [B, 1].
    """
    return tensor.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)


def token_mean(tensor: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the metric "mean over tokens" as ``(sum, count)``.

    Args:
        tensor: float or bool [B, L]; what lies outside the mask is not read.
        mask: bool [B, L].
    """
    return tensor.detach().double().masked_fill(~mask, 0.0).sum(), mask.sum()


def mean_and_variance(tensor: Tensor, mask: Tensor, all_reduce: AllReduce) -> tuple[Tensor, Tensor]:
    """Return mean and sample variance over the tokens of all ranks.

    Two passes, for the sum of squares would cancel. The variance of fewer than two tokens is 0.

    Args:
        tensor: float [B, L], zero outside the mask.
        mask: bool [B, L].
        all_reduce: sum over ranks.

    Returns:
        two float64 scalars.
    """
    tensor = tensor.double()
    total, count = all_reduce(torch.stack([tensor.sum(), mask.sum().double()]))
    mean = total / count.clamp(min=1)
    squares = all_reduce((tensor - mean).masked_fill(~mask, 0.0).square().sum())
    return mean, squares / (count - 1).clamp(min=1)


def whiten(tensor: Tensor, mask: Tensor, all_reduce: AllReduce) -> Tensor:
    """Return the tensor with mean 0 and variance 1 over the tokens of all ranks, zero outside the mask."""
    mean, variance = mean_and_variance(tensor, mask, all_reduce)
    return ((tensor - mean) * torch.rsqrt(variance + 1e-8)).masked_fill(~mask, 0.0)

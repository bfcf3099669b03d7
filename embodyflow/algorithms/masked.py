"""Sums and means over the tokens of a mask, on one rank or on all.

A function that needs a statistic of the *whole* batch takes an :data:`AllReduce`, which by default sees one rank. Sums
over ranks are float64, so that the result does not depend on how rows are spread.
"""

from collections.abc import Callable

import torch
from torch import Tensor

AllReduce = Callable[[Tensor], Tensor]
"""Function that returns the elementwise sum of a tensor over all ranks; every rank calls it in the same order."""

Metrics = dict[str, tuple[Tensor, Tensor]]
"""Detached scalars ``(sum, count)`` by metric name: add both over micro-batches and ranks, then divide."""


def one_rank(tensor: Tensor) -> Tensor:
    """Return the tensor itself: the :data:`AllReduce` of a single rank."""
    return tensor


def split_steps(tokens: Tensor, values: Tensor | None) -> Tensor:
    """Return the tokens of each step: a step is what has a value, a decision or each action of its chunk.

    Args:
        tokens: Numbers of tokens, [B, T, L], in the order of the actions of each decision.
        values: Values, float [B, T] or, with V values for each decision, [B, T, V]. Without them decisions are steps.

    Returns:
        The tokens, [B, T, V, L / V].
    """
    return tokens.unflatten(-1, (1 if values is None else values.shape[2:].numel(), -1))


def valued_steps(mask: Tensor, values: Tensor) -> Tensor:
    """Return the mask of the steps with a token, bool [B, T·V]; see :func:`split_steps` for the arguments."""
    return split_steps(mask, values).any(-1).flatten(1)


def row_mean(tensor: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over each row's tokens; 0 for a row without tokens.

    Args:
        tensor: Numbers, float [B, L], zero outside the mask.
        mask: Tokens, bool [B, L].

    Returns:
        Means, float [B, 1].
    """
    return tensor.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)


def token_mean(tensor: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean over tokens as a metric, ``(sum, count)``.

    Args:
        tensor: Numbers, float or bool [B, L], not read outside the mask.
        mask: Tokens, bool [B, L].
    """
    return tensor.detach().double().masked_fill(~mask, 0.0).sum(), mask.sum()


def mean_and_variance(tensor: Tensor, mask: Tensor, all_reduce: AllReduce) -> tuple[Tensor, Tensor]:
    """Return mean and sample variance over the tokens of all ranks.

    It takes two passes, because a sum of squares would cancel. The variance of fewer than two tokens is 0.

    Args:
        tensor: Numbers, float [B, L], zero outside the mask.
        mask: Tokens, bool [B, L].
        all_reduce: Sum over ranks.

    Returns:
        Two float64 scalars.
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

"""Sums and means over the tokens of a mask, on one rank or on all.

A function that needs a statistic of the *whole* batch takes an :data:`AllReduce`, which by default sees one rank, or
:data:`Sums` over whatever rows the statistic is of. Sums over ranks are float64, so that the result does not depend on
how rows are spread.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

AllReduce = Callable[[Tensor], Tensor]
"""Function that returns the elementwise sum of a tensor over all ranks; every rank calls it in the same order."""

Sums = Callable[..., tuple[Tensor, ...]]
"""Function of tensors [B, L] that returns the sum of each over some rows of all ranks, float64.

:func:`over_rows` gives scalars, the sums over all rows, and :func:`over_minibatches` columns [B, 1], the sums over the
mini-batch of each row. Every rank calls it in the same order.
"""

Metrics = dict[str, tuple[Tensor, Tensor]]
"""Detached scalars ``(sum, count)`` by metric name: add both over micro-batches and ranks, then divide."""


def one_rank(tensor: Tensor) -> Tensor:
    """Return the tensor itself: the :data:`AllReduce` of a single rank."""
    return tensor


def over_rows(all_reduce: AllReduce = one_rank) -> Sums:
    """Return sums over all rows of all ranks."""

    def sums(*tensors: Tensor) -> tuple[Tensor, ...]:
        return all_reduce(torch.stack([tensor.sum().double() for tensor in tensors])).unbind()

    return sums


def over_minibatches(cuts: Sequence[slice], all_reduce: AllReduce = one_rank) -> Sums:
    """Return sums over the mini-batch of each row, on all ranks, with one call of ``all_reduce`` for all of them.

    Args:
        cuts: Rows of each mini-batch on this rank, one after the other.
        all_reduce: Sum over ranks.
    """
    sizes = torch.tensor([cut.stop - cut.start for cut in cuts], dtype=torch.int64)
    minibatch = torch.arange(len(cuts)).repeat_interleave(sizes)

    def sums(*tensors: Tensor) -> tuple[Tensor, ...]:
        rows = torch.stack([tensor.sum(1).double() for tensor in tensors], 1)
        totals = rows.new_zeros(len(cuts), len(tensors)).index_add_(0, minibatch, rows)
        return all_reduce(totals)[minibatch].split(1, dim=1)

    return sums


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


def token_means(tensors: Mapping[str, Tensor], mask: Tensor) -> Metrics:
    """Return the mean of each tensor over tokens, as :func:`token_mean` does, with fewer operations.

    Args:
        tensors: Numbers by the name of the metric, float [B, L], not read outside the mask.
        mask: Tokens, bool [B, L].
    """
    stacked = torch.stack([tensor.detach().double() for tensor in tensors.values()])
    totals, count = stacked.masked_fill(~mask, 0.0).flatten(1).sum(1), mask.sum()
    return {name: (total, count) for name, total in zip(tensors, totals.unbind(), strict=True)}


def mean_and_variance(tensor: Tensor, mask: Tensor, sums: Sums) -> tuple[Tensor, Tensor]:
    """Return mean and sample variance over tokens.

    It takes two passes, because a sum of squares would cancel. The variance of fewer than two tokens is 0.

    Args:
        tensor: Numbers, float [B, L], zero outside the mask.
        mask: Tokens, bool [B, L].
        sums: Sums over the rows that both are of.

    Returns:
        Two float64 tensors with the shape of the sums.
    """
    tensor = tensor.double()
    total, count = sums(tensor, mask)
    mean = total / count.clamp(min=1)
    (squares,) = sums((tensor - mean).masked_fill(~mask, 0.0).square())
    return mean, squares / (count - 1).clamp(min=1)


def whiten(tensor: Tensor, mask: Tensor, sums: Sums) -> Tensor:
    """Return the tensor with mean 0 and variance 1 over the rows of the sums, zero outside the mask."""
    mean, variance = mean_and_variance(tensor, mask, sums)
    return ((tensor - mean) * torch.rsqrt(variance + 1e-8)).masked_fill(~mask, 0.0)

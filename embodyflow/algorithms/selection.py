"""Selection of the highest tokens of a mini-batch, over all ranks.

Every rank selects once, before the mini-batch is cut, and the mask travels with the rows. So a gradient does not depend
on the cut into micro-batches and ranks.
"""

import torch
from torch import Tensor

from embodyflow.algorithms.masked import AllReduce, one_rank

_BISECTIONS = 64  # more than a float64 has binary digits
_ROUNDING = 1e-9  # of a count: (1 − 0.7)·10 is 3 + 4e-16


def top_entropy_tokens(entropy: Tensor, mask: Tensor, fraction: float, all_reduce: AllReduce = one_rank) -> Tensor:
    """Select the tokens whose entropy is at least the (1 − ``fraction``) quantile over the mini-batch.

    With N tokens and linear interpolation those are the N − ⌈(1 − fraction)·(N − 1)⌉ highest ones, and those that tie
    with the lowest of them. Wang et al. 2025, "Beyond the 80/20 rule: high-entropy minority tokens drive effective
    reinforcement learning for LLM reasoning", arXiv:2506.01939, with the fraction 0.2.

    Args:
        entropy: Entropy of each token's distribution, float [B, L], not read outside the mask.
        mask: Tokens of the policy, bool [B, L].
        fraction: Share of the tokens to select, in (0, 1].
        all_reduce: Sum over ranks; called 66 times with a scalar.

    Returns:
        Mask bool [B, L], for :attr:`embodyflow.algorithms.losses.LossInputs.high_entropy`.
    """
    num_tokens = all_reduce(mask.sum().double())
    below = ((1.0 - fraction) * (num_tokens - 1) - _ROUNDING).ceil()
    above, tied = highest(entropy.double(), mask, (num_tokens - below).clamp(min=0), all_reduce)
    return above | tied


def highest(scores: Tensor, candidates: Tensor, limit: Tensor, all_reduce: AllReduce) -> tuple[Tensor, Tensor]:
    """Select the ``limit`` candidates with the highest scores over all ranks.

    Bisection finds the threshold, because it needs sums only. If there are no more candidates than ``limit``, the
    second mask has all that remain.

    Args:
        scores: Scores, float64 [B, L], not read outside the candidates.
        candidates: Tokens to choose from, bool [B, L].
        limit: Number of tokens to select over all ranks, a scalar.
        all_reduce: Sum over ranks.

    Returns:
        Two masks [B, L]: fewer candidates than ``limit``, all above the threshold, and those that tie at it.
    """
    squares = all_reduce(scores.masked_fill(~candidates, 0.0).square().sum())
    scores = scores.masked_fill(~candidates, -torch.inf)
    high = squares.sqrt() + 1.0
    low = -high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        enough = all_reduce((scores > middle).sum()) >= limit
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    above = scores > high
    return above, (scores > low) & ~above & (limit > 0)

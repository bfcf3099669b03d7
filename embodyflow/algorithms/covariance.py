"""Selection of tokens for clip_cov and kl_cov: tokens whose log-prob and advantage vary together.

These tokens make a policy's entropy collapse. Cui et al. 2025, "The entropy mechanism of reinforcement learning for
reasoning language models", arXiv:2505.22617: Cov_t = (log π_t − mean log π)·(A_t − mean A).

Mean and selection cover the whole mini-batch, so every rank computes them once, before the mini-batch is cut, and the
mask travels with the rows. That needs the log-probs of all tokens up front: those of the behavior policy, which the
trainer has (and which are the current ones at the first update after a rollout), or those of the current policy at the
cost of a forward pass. Published code selects within each micro-batch, which makes the gradient depend on the cut.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from embodyflow.algorithms.algorithm_config import AlgorithmConfig, CovarianceConfig
from embodyflow.algorithms.algorithm_registry import LOSSES
from embodyflow.algorithms.masked import AllReduce, mean_and_variance, one_rank, over_rows
from embodyflow.algorithms.selection import highest
from embodyflow.references import resolve

SelectFunction = Callable[[Tensor, Tensor, Tensor, Tensor, CovarianceConfig, AllReduce], Tensor]
"""Selection of tokens, bool [B, L], by log-probs, advantages, mask, row seeds, settings and sum over ranks."""


def select_tokens(
    log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    row_seeds: Tensor,
    config: AlgorithmConfig,
    all_reduce: AllReduce = one_rank,
) -> Tensor | None:
    """Return the tokens that the configured loss selects; ``None`` for a loss that treats all tokens alike.

    Args:
        log_probs: Log-probs of this rank's rows of the mini-batch, float [B, L].
        advantages: Advantages, float [B, L].
        mask: Tokens of the policy, bool [B, L].
        row_seeds: Seed of each row, int64 [B], from :func:`embodyflow.seeding.derive_seed` with the row's uid, so that
            a random choice does not depend on the rank of the row.
        config: Algorithm, which names the loss.
        all_reduce: Sum over ranks; called up to about 140 times with a scalar.

    Returns:
        Mask bool [B, L] for :attr:`embodyflow.algorithms.losses.LossInputs.selected`.
    """
    selection = LOSSES.resolve(config.loss).selection
    if selection is None:
        return None
    select: SelectFunction = resolve(selection)
    return select(log_probs.detach(), advantages, mask, row_seeds, config.covariance, all_reduce)


def highest_covariance(
    log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    row_seeds: Tensor,
    config: CovarianceConfig,
    all_reduce: AllReduce,
) -> Tensor:
    """Select the ``fraction`` of tokens with the highest covariance, whatever its sign (kl_cov).

    Ties at the threshold are broken at random, so the number of tokens is always that of the paper.
    """
    covariance = _covariance(log_probs, advantages, mask, all_reduce)
    limit = _limit(mask, config.fraction, all_reduce)
    above, tied = highest(covariance, mask, limit, all_reduce)
    left = limit - all_reduce(above.sum())
    drawn, also_drawn = highest(_draws(row_seeds, mask), tied, left, all_reduce)
    return above | drawn | also_drawn


def random_in_band(
    log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    row_seeds: Tensor,
    config: CovarianceConfig,
    all_reduce: AllReduce,
) -> Tensor:
    """Select a ``fraction`` of the tokens at random, among those with covariance in (low, high) (clip_cov).

    Which tokens PPO clips is known only in the loss, which leaves those alone.
    """
    covariance = _covariance(log_probs, advantages, mask, all_reduce)
    in_band = mask & (covariance > config.low) & (covariance < config.high)
    limit = _limit(mask, config.fraction, all_reduce)
    drawn, also_drawn = highest(_draws(row_seeds, mask), in_band, limit, all_reduce)
    return drawn | also_drawn


def _covariance(log_probs: Tensor, advantages: Tensor, mask: Tensor, all_reduce: AllReduce) -> Tensor:
    """Return the covariance of each token, with means over all ranks, float64 [B, L]."""
    factors = []
    for tensor in (log_probs, advantages):
        inside = tensor.double().masked_fill(~mask, 0.0)
        mean, _ = mean_and_variance(inside, mask, over_rows(all_reduce))
        factors.append(inside - mean)
    return factors[0] * factors[1]


def _draws(row_seeds: Tensor, mask: Tensor) -> Tensor:
    """Return uniform numbers in (0, 1], float64 [B, L], that depend on row seed and column only."""
    draws = torch.empty(mask.shape, dtype=torch.float64)
    for row, seed in zip(draws, row_seeds.tolist(), strict=True):
        torch.rand(row.shape, generator=torch.Generator().manual_seed(seed), out=row)
    return 1.0 - draws.to(mask.device)


def _limit(mask: Tensor, fraction: float, all_reduce: AllReduce) -> Tensor:
    """Return the number of tokens to select over all ranks: ``fraction`` of them, at least one."""
    return (all_reduce(mask.sum().double()) * fraction).floor().clamp(min=1)

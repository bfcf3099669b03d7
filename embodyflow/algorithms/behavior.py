"""Weights of tokens that another policy sampled than the one whose ratio is clipped.

The decoupled objective has three policies: π in training, the proximal policy that it stays near, and the behavior
policy that acted. The loss uses the ratio π / π_prox, and the weight π_prox / π_behav corrects for the difference
between the other two (Hilton et al. 2021, "Batch size-invariance for policy optimization", arXiv:2110.00641; for
language models Fu et al. 2025, "AReaL", arXiv:2505.24298). It is truncated to bound its variance, as in IMPALA
(Espeholt et al. 2018, arXiv:1802.01561). It also corrects for a generation engine of another precision.

With ``old_log_probs=interpolated`` no pass computes the proximal policy. Its log-probs are taken to lie between those
of the behavior policy and of the policy in training, as far along as its version does.

``rejection`` gives the weight 0 to tokens, or rows, whose weight lies outside two bounds, instead of trusting it: the
masks of AReaL (``rejection_sampling``) and verl (``rollout_correction``). Rejected tokens still count in the mean of
the loss, as rows that a filter drops do, so that a step is no larger where there is less to learn from. KL term
and entropy bonus do not depend on who sampled, and keep them.
"""

import torch
from torch import Tensor

from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.algorithms.algorithm_registry import LOSSES
from embodyflow.algorithms.losses import MAX_LOG_RATIO
from embodyflow.algorithms.masked import row_mean


def interpolated_proximal(log_probs: Tensor, behavior: Tensor, staleness: Tensor) -> Tensor:
    """Return log π_prox ≈ log π_behav + s / (s + 1) · (log π − log π_behav), without gradient.

    s is how many versions older than the proximal policy the one is that acted, and the policy in training is one
    version newer than the proximal policy. A token with s = 0 has the log-prob that it was sampled with, which is exact
    (A-3PO, Li et al. 2025, arXiv:2512.06547).

    Args:
        log_probs: Log-probs under the policy in training, float [B, L].
        behavior: Log-probs when sampled, float [B, L].
        staleness: s of each token, at least 0, integer [B, L].
    """
    share = staleness / (staleness + 1)
    return behavior + share.to(behavior.dtype) * (log_probs.detach() - behavior)


def behavior_weights(proximal: Tensor, behavior: Tensor, mask: Tensor, config: AlgorithmConfig) -> Tensor:
    """Return min(exp d, ``max_behavior_weight``) with d = log π_prox − log π_behav; 0 if rejected, 1 outside the mask.

    For a loss with one ratio per row (gspo) d is the mean over the row, as in the ratio. ``rejection.level=token``
    rejects tokens with exp d outside [low, high], and ``sequence`` rows with exp(mean d) outside. The tokens of a loss
    with one ratio per row have that of the row, so both levels agree there.

    Args:
        proximal: Log-probs under the policy whose ratio is clipped, float [B, L].
        behavior: Log-probs when sampled, float [B, L].
        mask: Tokens of the policy, bool [B, L].
        config: Algorithm, which names the loss and the bound.
    """
    difference = (proximal - behavior).masked_fill(~mask, 0.0)
    if LOSSES.resolve(config.loss).per_row:
        difference = row_mean(difference, mask).expand_as(difference)
    ratio = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    weights = ratio.clamp(max=config.max_behavior_weight).masked_fill(_rejected(ratio, difference, mask, config), 0.0)
    return torch.where(mask, weights, 1.0)


def _rejected(ratio: Tensor, difference: Tensor, mask: Tensor, config: AlgorithmConfig) -> Tensor:
    """Return the tokens that ``rejection`` takes out of the policy loss, bool [B, L]."""
    rejection = config.rejection
    if rejection.level is None:
        return torch.zeros_like(mask)
    if rejection.level == "sequence":
        mean = row_mean(difference, mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        ratio = mean.exp().expand_as(difference)
    return mask & ((ratio < rejection.low) | (ratio > rejection.high))

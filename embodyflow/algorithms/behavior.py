"""Weights of tokens that another policy sampled than the one whose ratio is clipped.

The decoupled objective has three policies: π in training, the proximal policy that it stays near, and the behavior
policy that acted. The loss uses the ratio π / π_prox, and the weight π_prox / π_behav corrects for the difference
between the other two (Hilton et al. 2021, "Batch size-invariance for policy optimization", arXiv:2110.00641; for
language models Fu et al. 2025, "AReaL", arXiv:2505.24298). It is truncated to bound its variance, as in IMPALA
(Espeholt et al. 2018, arXiv:1802.01561). It also corrects for a generation engine of another precision.
"""

import torch
from torch import Tensor

from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.algorithms.algorithm_registry import LOSSES
from embodyflow.algorithms.losses import MAX_LOG_RATIO
from embodyflow.algorithms.masked import row_mean


def behavior_weights(proximal: Tensor, behavior: Tensor, mask: Tensor, config: AlgorithmConfig) -> Tensor:
    """Return min(exp d, ``max_behavior_weight``) with d = log π_prox − log π_behav; 1 outside the mask.

    For a loss with one ratio per row (gspo) d is the mean over the row, as in the ratio.

    Args:
        proximal: Log-probs under the policy whose ratio is clipped, float [B, L].
        behavior: Log-probs when sampled, float [B, L].
        mask: Tokens of the policy, bool [B, L].
        config: Algorithm, which names the loss and the bound.
    """
    difference = (proximal - behavior).masked_fill(~mask, 0.0)
    if LOSSES.resolve(config.loss).per_row:
        difference = row_mean(difference, mask).expand_as(difference)
    weights = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(max=config.max_behavior_weight)
    return torch.where(mask, weights, 1.0)

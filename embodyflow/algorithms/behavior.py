"""What tokens count for that another policy sampled than the one whose ratio is clipped.

The decoupled objective has three policies: π in training, the proximal one that it must stay near, and the behavior
policy that acted. Its loss is the usual one of π / π_prox, and its weight π_prox / π_behav makes up for the difference
between the other two (Hilton et al. 2021, "Batch size-invariance for policy optimization", arXiv:2110.00641; for
language models Fu et al. 2025, "AReaL", arXiv:2505.24298). Truncated, as in IMPALA (Espeholt et al. 2018,
arXiv:1802.01561), it is of bounded variance; it makes up for a generation engine of another precision as well.
"""

import torch
from torch import Tensor

from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.algorithms.algorithm_registry import LOSSES
from embodyflow.algorithms.losses import MAX_LOG_RATIO
from embodyflow.algorithms.masked import row_mean


def behavior_weights(proximal: Tensor, behavior: Tensor, mask: Tensor, config: AlgorithmConfig) -> Tensor:
    """Return min(exp d, ``max_behavior_weight``) with d = log π_prox − log π_behav; 1 outside the mask.

    A loss that is one number per row (gspo) has one weight per row, of the mean d, as its ratio is.

    Args:
        proximal: float [B, L], log-probs under the policy whose ratio is clipped.
        behavior: float [B, L], those the tokens were sampled with.
        mask: bool [B, L].
        config: names the loss and the bound.
    """
    difference = (proximal - behavior).masked_fill(~mask, 0.0)
    if LOSSES.resolve(config.loss).per_row:
        difference = row_mean(difference, mask).expand_as(difference)
    weights = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(max=config.max_behavior_weight)
    return torch.where(mask, weights, 1.0)

"""Aggregation of the losses of tokens to one number, which does not depend on how the batch is cut.

The mean over a mini-batch is not the mean of its micro-batches' means. So every token gets a weight, computed once from
counts over the *whole* mini-batch (all micro-batches, all ranks). A micro-batch's loss is the sum of weight × loss, and
gradients add up over micro-batches and ranks. Engines that average gradients over ranks (FSDP, DDP) multiply the loss
by the number of ranks.
"""

from dataclasses import dataclass

from torch import Tensor

from embodyflow.algorithms.algorithm_config import Aggregation
from embodyflow.algorithms.masked import Sums, over_rows

_WHOLE = over_rows()


@dataclass(frozen=True)
class GlobalCounts:
    """Sizes of mini-batches over all ranks and micro-batches.

    Attributes:
        num_tokens: Number of tokens in the mask, a float64 scalar, or a column [B, 1] with that of each row's own
            mini-batch.
        num_rows: Number of rows with at least one token, so that padding rows do not dilute a mean; a scalar or column
            like the number of tokens.
        row_capacity: Number of tokens a row can hold, the norm of ``seq_mean_token_sum_norm``.
    """

    num_tokens: Tensor
    num_rows: Tensor
    row_capacity: int


def count_tokens(mask: Tensor, row_capacity: int, sums: Sums = _WHOLE) -> GlobalCounts:
    """Return the size of a mini-batch, or of each row's mini-batch.

    Args:
        mask: Mask of this rank's rows, bool [B, L], as wide as the longest of them.
        row_capacity: Number of tokens any row can hold.
        sums: Sums over a mini-batch; by default one of all rows, on one rank.
    """
    num_tokens, num_rows = sums(mask, mask.any(1, keepdim=True))
    return GlobalCounts(num_tokens, num_rows, row_capacity)


def token_weights(mask: Tensor, aggregation: Aggregation, counts: GlobalCounts) -> Tensor:
    """Return the weight of each token's loss in the loss of the mini-batch.

    With N tokens and R rows in the whole mini-batch, n tokens in the token's row, and row capacity C:

    ====================================  =============  ==========================================
    ``token_mean``                        1 / N          DAPO: tokens weigh alike
    ``seq_mean_token_sum``                1 / R          the mean over rows of a row's sum
    ``seq_mean_token_mean``               1 / (R·n)      GRPO, GSPO: rows weigh alike
    ``seq_mean_token_sum_norm``           1 / (R·C)      Dr.GRPO: a constant instead of the length
    ====================================  =============  ==========================================

    Args:
        mask: Mask of whole rows, bool [B, L].
        aggregation: One of the four.
        counts: Sizes of the whole mini-batch. If it has no tokens, all weights are 0.

    Returns:
        Weights, float64 [B, L], zero outside the mask. A micro-batch takes the slice of its rows.
    """
    num_rows = counts.num_rows.clamp(min=1)
    match aggregation:
        case "token_mean":
            norm = counts.num_tokens.clamp(min=1)
        case "seq_mean_token_sum":
            norm = num_rows
        case "seq_mean_token_mean":
            norm = num_rows * mask.sum(1, keepdim=True).clamp(min=1)
        case "seq_mean_token_sum_norm":
            norm = num_rows * counts.row_capacity
    return mask.double() / norm

"""How the losses of tokens become one number, the same however the batch is cut.

A mean over a mini-batch is not the mean of its micro-batches' means. So the weight of every token is computed
once, from counts over the *whole* mini-batch (all micro-batches, all ranks), and travels with the token: a
micro-batch's loss is the sum of weight × loss, the micro-batches' gradients add up, and so do the ranks'.
Engines that average gradients over ranks (FSDP, DDP) multiply the loss by the number of ranks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from embodyflow.algorithms.algorithm_config import Aggregation
from embodyflow.algorithms.masked import AllReduce, one_rank


@dataclass(frozen=True)
class GlobalCounts:
    """Sizes of a mini-batch over all ranks and micro-batches.

    Attributes:
        num_tokens: tokens in the mask.
        num_rows: rows with at least one token; rows that only pad do not dilute a mean.
        row_capacity: tokens a row can hold; the norm of ``seq_mean_token_sum_norm``.
    """

    num_tokens: int
    num_rows: int
    row_capacity: int


def count_tokens(mask: Tensor, row_capacity: int, all_reduce: AllReduce = one_rank) -> GlobalCounts:
    """Count a mini-batch.

    Args:
        mask: bool [B, L], this rank's rows of the mini-batch, as wide as the longest of them.
        row_capacity: tokens a row can hold, whichever rows are at hand.
        all_reduce: sum over ranks.
    """
    num_tokens, num_rows = all_reduce(torch.stack([mask.sum(), mask.any(1).sum()])).tolist()
    return GlobalCounts(int(num_tokens), int(num_rows), row_capacity)


def token_weights(mask: Tensor, aggregation: Aggregation, counts: GlobalCounts) -> Tensor:
    """Return the weight of every token's loss in the mini-batch's.

    With N tokens and R rows in the whole mini-batch, n in the token's row, and C the capacity of a row:

    ====================================  =============  ==========================================
    ``token_mean``                        1 / N          DAPO: tokens weigh alike
    ``seq_mean_token_sum``                1 / R          the mean over rows of a row's sum
    ``seq_mean_token_mean``               1 / (R·n)      GRPO, GSPO: rows weigh alike
    ``seq_mean_token_sum_norm``           1 / (R·C)      Dr.GRPO: a constant instead of the length
    ====================================  =============  ==========================================

    Args:
        mask: bool [B, L], whole rows.
        aggregation: which of the four.
        counts: of the whole mini-batch. Without a token in it every weight is 0, and so is the loss.

    Returns:
        float64 [B, L], zero outside the mask; cut it with the rows.
    """
    num_tokens, num_rows = max(counts.num_tokens, 1), max(counts.num_rows, 1)
    match aggregation:
        case "token_mean":
            norm = torch.tensor(num_tokens)
        case "seq_mean_token_sum":
            norm = torch.tensor(num_rows)
        case "seq_mean_token_mean":
            norm = num_rows * mask.sum(1, keepdim=True).clamp(min=1)
        case "seq_mean_token_sum_norm":
            norm = torch.tensor(num_rows * counts.row_capacity)
    return mask.double() / norm

"""Rewards of rows: where they are placed, and what length costs."""

from torch import Tensor

from embodyflow.algorithms.algorithm_config import OverlongConfig


def place_on_last_token(scores: Tensor, mask: Tensor) -> Tensor:
    """Return token rewards that are each row's score at its last token and zero elsewhere.

    Args:
        scores: float [B].
        mask: bool [B, L].

    Returns:
        [B, L] of the scores' dtype.

    Raises:
        ValueError: a row has a score and no token to carry it.
    """
    lost = ~mask.any(1) & (scores != 0)
    if lost.any():
        raise ValueError(f"scores: rows {lost.nonzero().flatten().tolist()} have a score but no token in the mask")
    tokens_to_come = mask.flip(1).cumsum(1).flip(1)
    return scores[:, None] * (mask & (tokens_to_come == 1))


def overlong_penalty(num_tokens: Tensor, max_tokens: int, config: OverlongConfig) -> Tensor:
    """Return what DAPO adds to the score of long rows: from 0 at the buffer's start to −penalty at the limit.

    −penalty·clip((length − (max_tokens − buffer)) / buffer, 0, 1). Yu et al. 2025, arXiv:2503.14476, eq. 13.

    Args:
        num_tokens: int64 [B], length of each row.
        max_tokens: the limit.
        config: buffer and penalty.

    Returns:
        float32 [B], not positive.
    """
    over = (num_tokens - (max_tokens - config.buffer)) / config.buffer
    return -config.penalty * over.clamp(0.0, 1.0)

"""Shaping of rewards: their place among a row's tokens, and a penalty for length."""

from torch import Tensor

from embodyflow.algorithms.algorithm_config import OverlongConfig


def place_on_last_token(scores: Tensor, mask: Tensor) -> Tensor:
    """Return token rewards: each row's score at its last token, zero elsewhere.

    Args:
        scores: Score of each row, float [B].
        mask: Tokens of the policy, bool [B, L].

    Returns:
        Rewards [B, L] of the scores' dtype.

    Raises:
        ValueError: A row has a score but no tokens.
    """
    lost = ~mask.any(1) & (scores != 0)
    if lost.any():
        raise ValueError(f"scores: rows {lost.nonzero().flatten().tolist()} have a score but no token in the mask")
    tokens_to_come = mask.flip(1).cumsum(1).flip(1)
    return scores[:, None] * (mask & (tokens_to_come == 1))


def overlong_penalty(num_tokens: Tensor, max_tokens: int, config: OverlongConfig) -> Tensor:
    """Return DAPO's penalty for long rows, from 0 at the start of the buffer to −penalty at the limit.

    −penalty·clip((length − (max_tokens − buffer)) / buffer, 0, 1). Yu et al. 2025, arXiv:2503.14476, eq. 13.

    Args:
        num_tokens: Length of each row, int64 [B].
        max_tokens: Length limit.
        config: Buffer and penalty.

    Returns:
        Addition to the score, float32 [B], not positive.
    """
    over = (num_tokens - (max_tokens - config.buffer)) / config.buffer
    return -config.penalty * over.clamp(0.0, 1.0)

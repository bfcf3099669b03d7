"""Parts that the tables of recorded episodes share."""

from typing import Any

import torch

from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.algorithms.losses import LossInputs, find_loss
from embodyflow.record.episodes.episode_record import Episodes

EpisodeRow = dict[str, Any]
"""One recorded episode: its columns by name."""


def episode_row(episodes: Episodes, row: int) -> EpisodeRow:
    """Return one episode of several."""
    return {name: column[row] for name, column in episodes.items()}


def total_reward(episode: EpisodeRow) -> float | None:
    """Return the sum of the episode's rewards; ``None`` if its group was filtered out."""
    return float(episode["rewards"].sum()) if episode["trained"] else None


def mean_advantage(episode: EpisodeRow) -> float | None:
    """Return the mean advantage over the episode's tokens; without a critic it is the same for all of them."""
    return float(episode["advantages"][episode["loss_mask"]].mean()) if episode["trained"] else None


def policy_loss(
    algorithm: AlgorithmConfig, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return the loss of each token before the first step, when the policy still equals the behavior policy.

    Losses that treat selected tokens of a mini-batch differently are shown without that selection.
    """
    shape = mask.shape
    inputs = LossInputs(
        log_probs=old.reshape(1, -1),
        old_log_probs=old.reshape(1, -1),
        advantages=advantages.reshape(1, -1),
        mask=mask.reshape(1, -1),
        selected=torch.zeros(1, mask.numel(), dtype=torch.bool),
    )
    losses, _ = find_loss(algorithm.loss)(inputs.zero_outside_mask(), algorithm)
    return losses.reshape(shape)

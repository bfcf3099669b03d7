"""Parts that the tables of recorded episodes share."""

import os
from typing import Any

import torch
from rich.console import Console

from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.algorithms.losses import LossInputs, find_loss

FILE_WIDTH = 1000
"""Columns of a table that is written to a file or a pipe, so that no line wraps."""


def console() -> Console:
    """Return the console for tables. A file or a pipe gets full lines instead of 80 columns."""
    screen = Console()
    return screen if screen.is_terminal or "COLUMNS" in os.environ else Console(width=FILE_WIDTH)


def mean_advantage(episode: dict[str, Any]) -> float | None:
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

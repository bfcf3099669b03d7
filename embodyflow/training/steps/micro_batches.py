"""Splitting a batch into mini-batches, one per optimizer step, and those into micro-batches.

Mini-batches affect what is learned, so they do not depend on the number of ranks. Micro-batches affect only the memory
of a forward and backward pass.
"""

from collections.abc import Sequence

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.config.trainer import TrainerConfig
from embodyflow.training.parallel.mesh import Mesh


def draw_minibatches(total_rows: int, num_minibatches: int, seed: int) -> np.ndarray:
    """Return the mini-batch index of every row of the whole batch, int64 ``[total_rows]``; sizes differ by at most 1.

    Args:
        total_rows: Number of rows in the whole batch.
        num_minibatches: Number of mini-batches.
        seed: Seed of the permutation.
    """
    order = np.random.default_rng(seed).permutation(total_rows)
    minibatch_of = np.empty(total_rows, np.int64)
    minibatch_of[order] = np.arange(total_rows) * num_minibatches // total_rows
    return minibatch_of


def cut_by_rows(num_rows: int, size: int) -> list[slice]:
    """Return consecutive micro-batches of ``size`` rows; the last one has the remainder."""
    return [slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]


def cut_by_tokens(num_tokens: Sequence[int], limit: int) -> list[slice]:
    """Return consecutive micro-batches, each with as many rows as fit into ``limit`` tokens.

    Args:
        num_tokens: Number of tokens of each row, none above ``limit``.
        limit: Maximum number of tokens in a micro-batch.
    """
    cuts, start, total = [], 0, 0
    for row, tokens in enumerate(num_tokens):
        if total + tokens > limit:
            cuts.append(slice(start, row))
            start, total = row, 0
        total += tokens
    return [*cuts, slice(start, len(num_tokens))] if len(num_tokens) else []


def micro_batches(rows: TensorDict, config: TrainerConfig, mesh: Mesh) -> list[slice]:
    """Return slices of this rank's rows, one per forward pass; a collective that returns equally many on every rank."""
    if config.micro_batch_tokens is not None:
        cuts = cut_by_tokens(_num_tokens(rows), config.micro_batch_tokens)
    else:
        cuts = cut_by_rows(len(rows), config.micro_batch_rows or max(len(rows), 1))
    # Forward and backward are collectives, so ranks with fewer micro-batches add empty ones.
    return cuts + [slice(0, 0)] * (mesh.largest(len(cuts)) - len(cuts))


def _num_tokens(rows: TensorDict) -> list[int]:
    """Return the number of tokens per row in a forward pass: those of prompt and response, or those in the mask."""
    if "response_length" in set(rows.keys()):
        numbers: torch.Tensor = rows["prompt_length"] + rows["response_length"]
    else:
        numbers = rows["loss_mask"].flatten(1).sum(1)
    counts: list[int] = numbers.tolist()
    return counts

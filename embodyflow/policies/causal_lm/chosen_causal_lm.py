"""Log-probs of chosen tokens and the entropy they were chosen with, for vocabularies of a hundred thousand tokens.

Written as a chain of operations, softmax and entropy keep two more tensors as large as the logits for the backward
pass, whether anything depends on the entropy or not. Here nothing but the logits is kept, and the rest is computed in
pieces.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

PIECE = 2**20
"""Logits that are looked at at once."""


def choose(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log-probs and entropies, float32 ``[K]``, of the softmax at a temperature.

    Args:
        logits: float32 ``[K, V]``.
        targets: int64 ``[K]``.
        temperature: that they are divided by.
    """
    log_probs, entropy = _Choice.apply(logits, targets, temperature)
    return log_probs, entropy


class _Choice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        normaliser, mean = logits.new_empty((2, len(logits)))
        for part in _parts(logits):
            scaled = logits[part] / temperature
            normaliser[part] = scaled.logsumexp(-1)
            mean[part] = (scaled - normaliser[part, None]).exp_().mul_(scaled).sum(-1)
        ctx.save_for_backward(logits, targets, normaliser, mean)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        chosen = logits.gather(-1, targets[:, None]).squeeze(-1) / temperature
        return chosen - normaliser, normaliser - mean

    @staticmethod
    def backward(ctx: Any, of_log_probs: Tensor | None, of_entropy: Tensor | None) -> tuple[Tensor, None, None]:
        # With s the scaled logits and p their softmax: ∂ log p_c / ∂s_j = [j = c] − p_j and
        # ∂H / ∂s_j = −p_j·(s_j − Σ p·s).
        logits, targets, normaliser, mean = ctx.saved_tensors
        gradient = torch.zeros_like(logits)
        for part in _parts(logits):
            scaled = logits[part] / ctx.temperature
            probs = (scaled - normaliser[part, None]).exp_()
            if of_entropy is not None:
                gradient[part] -= scaled.sub_(mean[part, None]).mul_(probs).mul_(of_entropy[part, None])
            if of_log_probs is not None:
                gradient[part] -= probs.mul_(of_log_probs[part, None])
                gradient[part].scatter_add_(-1, targets[part, None], of_log_probs[part, None])
        return gradient.div_(ctx.temperature), None, None


def _parts(logits: Tensor) -> Iterator[slice]:
    size = max(PIECE // logits.shape[1], 1)
    return (slice(start, start + size) for start in range(0, len(logits), size))

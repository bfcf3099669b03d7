"""Log-probs of chosen tokens and entropy of their distributions, for vocabularies of a hundred thousand tokens.

Composed from operations, softmax and entropy would keep two more tensors as large as the logits for the backward pass,
even if nothing depends on the entropy. This function keeps only the logits, and computes the rest in pieces.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

PIECE = 2**20
"""Logits of one piece."""


def choose(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log-probs of the targets and entropies, both float32 ``[K]``, of the softmax at a temperature.

    Args:
        logits: Logits, float32 ``[K, V]``.
        targets: Chosen tokens, int64 ``[K]``.
        temperature: Divisor of the logits.
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

"""Log-probs of chosen tokens and entropy of their distributions, for vocabularies of a hundred thousand tokens.

Composed from operations, softmax and entropy would keep two more tensors as large as the logits for the backward pass,
even if nothing depends on the entropy. :func:`choose` keeps only the logits, and :func:`choose_by_head` computes these
again. Both compute the rest in pieces that fit into a processor's cache.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from embodyflow.policies.language.layers.onednn_linear import add_product_of_columns, linear_into, linear_of_any_size

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


def choose_by_head(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, num_rows: int
) -> tuple[Tensor, Tensor]:
    """Return the results of :func:`choose` for the logits ``hidden @ weight.T``, which never exist as a whole.

    Args:
        hidden: Hidden states, ``[K, H]``.
        weight: Weight of the head, ``[V, H]`` in the dtype of ``hidden``.
        targets: Chosen tokens, int64 ``[K]``.
        temperature: Divisor of the logits.
        num_rows: Rows of the logits that exist at a time.
    """
    log_probs, entropy = _ChoiceByHead.apply(hidden, weight, targets, temperature, num_rows)
    return log_probs, entropy


class _Choice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        normaliser, mean = logits.new_empty((2, len(logits)))
        for part in _parts(logits):
            normaliser[part], mean[part] = _moments(logits[part] / temperature)
        ctx.save_for_backward(logits, targets, normaliser, mean)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        chosen = logits.gather(-1, targets[:, None]).squeeze(-1) / temperature
        return chosen - normaliser, normaliser - mean

    @staticmethod
    def backward(ctx: Any, of_log_probs: Tensor | None, of_entropy: Tensor | None) -> tuple[Tensor, None, None]:
        logits, targets, normaliser, mean = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        for part in _parts(logits):
            factors = [None if each is None else each[part] / ctx.temperature for each in (of_log_probs, of_entropy)]
            scaled = logits[part] / ctx.temperature
            gradient[part] = _to_gradient(scaled, targets[part], normaliser[part], mean[part], *factors)
        return gradient, None, None


class _ChoiceByHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, num_rows: int
    ) -> tuple[Tensor, Tensor]:
        chosen, normaliser, mean = torch.empty((3, len(hidden)), device=hidden.device)
        scaled: Tensor | None = None
        for rows in _slices(len(hidden), num_rows):
            scaled = _scaled(hidden[rows], weight, temperature, scaled)
            chosen[rows] = scaled.gather(-1, targets[rows, None]).squeeze(-1)
            moments = [_moments(scaled[part]) for part in _parts(scaled)]
            normaliser[rows], mean[rows] = (torch.cat(each) for each in zip(*moments, strict=True))
        ctx.save_for_backward(hidden, weight, targets, normaliser, mean)
        ctx.temperature, ctx.num_rows = temperature, num_rows
        ctx.set_materialize_grads(False)
        return chosen - normaliser, normaliser - mean

    @staticmethod
    def backward(ctx: Any, of_log_probs: Tensor | None, of_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, normaliser, mean = ctx.saved_tensors
        needs_hidden, needs_weight, *_ = ctx.needs_input_grad
        of_hidden = torch.empty_like(hidden) if needs_hidden else None
        of_weight = torch.zeros_like(weight) if needs_weight else None
        scaled: Tensor | None = None
        for rows in _slices(len(hidden), ctx.num_rows):
            scaled = _scaled(hidden[rows], weight, ctx.temperature, scaled)
            factors = [None if each is None else each[rows] / ctx.temperature for each in (of_log_probs, of_entropy)]
            for part in _parts(scaled):
                given = (each[rows][part] for each in (targets, normaliser, mean))
                _to_gradient(scaled[part], *given, *(None if each is None else each[part] for each in factors))
            gradient = scaled.to(weight.dtype)
            if of_hidden is not None:
                of_hidden[rows] = linear_of_any_size(gradient, weight.t(), None)
            if of_weight is not None:
                add_product_of_columns(of_weight, gradient, hidden[rows])
        return of_hidden, of_weight, None, None, None


def _scaled(hidden: Tensor, weight: Tensor, temperature: float, earlier: Tensor | None) -> Tensor:
    """Return the logits of hidden states at a temperature, float32 ``[n, V]``, which may overwrite earlier ones."""
    return linear_into(earlier, hidden, weight).float().div_(temperature)


def _moments(scaled: Tensor) -> tuple[Tensor, Tensor]:
    """Return logarithms of the sums of exponentials, and the logits' means under their softmax, ``[n]`` each."""
    highest = scaled.amax(-1, keepdim=True)
    powers = (scaled - highest).exp_()
    totals = powers.sum(-1)
    return highest.squeeze(-1) + totals.log(), torch.linalg.vecdot(powers, scaled) / totals


def _to_gradient(
    scaled: Tensor,
    targets: Tensor,
    normaliser: Tensor,
    mean: Tensor,
    of_log_probs: Tensor | None,
    of_entropy: Tensor | None,
) -> Tensor:
    """Turn scaled logits s, ``[n, V]``, into the gradient by them, in place.

    With p their softmax, ∂ log p_c / ∂s_j = [j = c] - p_j and ∂H / ∂s_j = -p_j·(s_j - Σ p·s).
    """
    if of_entropy is None:
        scaled.sub_(normaliser[:, None]).exp_()
        if of_log_probs is None:
            return scaled.zero_()
        scaled.mul_(-of_log_probs[:, None])
    else:
        probs = (scaled - normaliser[:, None]).exp_()
        scaled.sub_(mean[:, None]).mul_(-of_entropy[:, None])
        if of_log_probs is not None:
            scaled.sub_(of_log_probs[:, None])
        scaled.mul_(probs)
    if of_log_probs is not None:
        scaled.scatter_add_(-1, targets[:, None], of_log_probs[:, None])
    return scaled


def _parts(logits: Tensor) -> Iterator[slice]:
    return _slices(len(logits), max(PIECE // logits.shape[1], 1))


def _slices(length: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, length, size))

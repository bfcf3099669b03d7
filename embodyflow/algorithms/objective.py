"""Objectives that a trainer minimises: policy loss, KL term and entropy bonus as one number, and the critic's loss."""

import torch
from torch import Tensor

from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.algorithms.kl import estimate_kl
from embodyflow.algorithms.losses import LossInputs, find_loss
from embodyflow.algorithms.masked import Metrics, token_mean, token_means


def policy_objective(
    inputs: LossInputs, weights: Tensor, config: AlgorithmConfig, kl_coef: float | None = None
) -> tuple[Tensor, Metrics]:
    """Return a micro-batch's share of the mini-batch's objective.

    The shares of all micro-batches and ranks add up to the objective, Σ weight·(behavior_weight·loss + kl_coef·KL −
    entropy_coef·entropy), with the loss 0 outside ``high_entropy``.

    Micro-batches may be cut between any two rows, and within a row unless the loss is
    ``per_row``.

    Args:
        inputs: Micro-batch.
        weights: Its slice of the :func:`~embodyflow.algorithms.aggregation.token_weights` of the whole mini-batch,
            float64 [B, L].
        config: Algorithm.
        kl_coef: Current coefficient of the adaptive controller; ``None`` is ``config.kl.coef``.

    Returns:
        A scalar with gradient, and metrics.

    Raises:
        ValueError: A configured term lacks its tensor, shapes differ, or a user's loss returns something else than a
            loss.
    """
    inputs = inputs.zero_outside_mask()
    mask = inputs.mask
    loss, metrics = _checked(config.loss, find_loss(config.loss)(inputs, config), mask)
    measured: dict[str, Tensor] = {}
    if inputs.high_entropy is not None:
        loss = loss.masked_fill(~inputs.high_entropy, 0.0)
        measured["policy/high_entropy_fraction"] = inputs.high_entropy
    if inputs.behavior_weights is not None:
        loss = loss * inputs.behavior_weights
        measured |= {
            "policy/behavior_weight": inputs.behavior_weights,
            "policy/behavior_bounded_fraction": inputs.behavior_weights >= config.max_behavior_weight,
        }
    measured |= {"policy/pg_loss": loss, "policy/old_kl": inputs.old_log_probs - inputs.log_probs.detach()}
    if inputs.entropy is not None:
        measured["policy/entropy"] = inputs.entropy
    if config.has_kl_loss:
        reference = _required(inputs.ref_log_probs, "ref_log_probs", f"kl.coef={config.kl.coef}")
        kl = estimate_kl(inputs.log_probs, reference, config.kl.estimator)
        measured["policy/reference_kl"] = kl
        loss = loss + (config.kl.coef if kl_coef is None else kl_coef) * kl
    if config.entropy_coef > 0:
        entropy = _required(inputs.entropy, "entropy", f"entropy_coef={config.entropy_coef}")
        loss = loss - config.entropy_coef * entropy
    return _weighted_sum(loss, weights, mask), {**metrics, **token_means(measured, mask)}


def value_objective(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    weights: Tensor,
    config: AlgorithmConfig,
) -> tuple[Tensor, Metrics]:
    """Return a micro-batch's share of the critic's loss: Σ weight·½·max((v − R)², (clip(v, v_old ± ε) − R)²).

    ε is ``value_clip``; without it the loss is the plain squared error. Schulman et al. 2017 (the code of PPO).

    Args:
        values: Values of the critic in training, float [B, L], with gradient.
        old_values: Values when the returns were computed, float [B, L].
        returns: Returns, float [B, L].
        mask: Tokens of the policy, bool [B, L].
        weights: Weights as in :func:`policy_objective`, float64 [B, L].
        config: Algorithm, which has ``value_clip``.

    Returns:
        A scalar with gradient, and metrics.
    """
    values, old_values, returns = (x.masked_fill(~mask, 0.0) for x in (values, old_values, returns))
    loss = (values - returns).square()
    metrics: Metrics = {}
    if config.value_clip is not None:
        near = old_values + (values - old_values).clamp(-config.value_clip, config.value_clip)
        clipped = (near - returns).square()
        metrics["critic/clip_fraction"] = token_mean(clipped > loss, mask)
        loss = torch.maximum(loss, clipped)
    loss = 0.5 * loss
    metrics["critic/loss"] = token_mean(loss, mask)
    return _weighted_sum(loss, weights, mask), metrics


def _checked(name: str, given: object, mask: Tensor) -> tuple[Tensor, Metrics]:
    """Check the result of a loss, which may be a user's: a mean, say, would be broadcast to every token."""
    if not isinstance(given, tuple) or len(given) != 2:
        raise ValueError(f"algorithm.loss={name}: returns {type(given).__name__}; allowed: (loss, metrics)")
    loss, metrics = given
    if not isinstance(loss, Tensor) or loss.shape != mask.shape:
        found = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(f"algorithm.loss={name}: returns a loss {found}; allowed: {list(mask.shape)}, one per token")
    for key, pair in metrics.items():
        if not isinstance(pair, tuple) or [getattr(number, "shape", None) for number in pair] != [(), ()]:
            raise ValueError(
                f"algorithm.loss={name}: the metric {key!r} must be (sum, count), two scalar tensors as "
                "embodyflow.algorithms.masked.token_mean returns"
            )
    return loss, metrics


def _required(tensor: Tensor | None, name: str, setting: str) -> Tensor:
    if tensor is None:
        raise ValueError(f"{name}: missing; {setting} needs it")
    return tensor


def _weighted_sum(loss: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    if weights.shape != mask.shape:
        raise ValueError(f"weights: shape {list(weights.shape)}; allowed: {list(mask.shape)} as the mask")
    return (loss * weights.to(loss.dtype)).masked_fill(~mask, 0.0).sum()

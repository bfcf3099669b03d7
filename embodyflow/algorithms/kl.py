"""Estimates of the KL divergence from the reference policy, and the controller of its coefficient.

Estimates are per token, with d = log π − log π_ref on tokens sampled from π (Schulman 2020, "Approximating KL
divergence", joschu.net/blog/kl-approx.html). As a loss, ``k1`` has the wrong gradient (that of log π, zero in
expectation) and ``k3`` a biased one. Estimators with ``+`` keep the value and take the gradient of ``k2``, which is the
KL's.
"""

from torch import Tensor

from embodyflow.algorithms.algorithm_config import KLConfig, KLEstimator

_MAX_LOG_RATIO = 20.0
_MAX_K3 = 10.0


def estimate_kl(log_probs: Tensor, ref_log_probs: Tensor, estimator: KLEstimator) -> Tensor:
    """Return the estimate for each token.

    ``k1``: d; ``abs``: |d|; ``k2``: d²/2; ``k3``: e^(−d) + d − 1, with −d clipped to ±20 and the result to 10, beyond
    which it has no gradient; with ``+``: the same value with the gradient of ``k2``.

    Args:
        log_probs: Log-probs under the policy, float [B, L], finite.
        ref_log_probs: Log-probs under the reference, float [B, L], finite.
        estimator: Name of the estimator.

    Returns:
        Estimates, float [B, L].
    """
    if estimator.endswith("+"):
        value = _estimate(log_probs, ref_log_probs, estimator[:-1]).detach()
        k2 = _estimate(log_probs, ref_log_probs, "k2")
        return value + k2 - k2.detach()
    return _estimate(log_probs, ref_log_probs, estimator)


def _estimate(log_probs: Tensor, ref_log_probs: Tensor, estimator: str) -> Tensor:
    difference = log_probs - ref_log_probs
    match estimator:
        case "k1":
            return difference
        case "k2":
            return 0.5 * difference.square()
        case "k3":
            negative = (-difference).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
            return (negative.expm1() - negative).clamp(max=_MAX_K3)
        case "abs":
            return difference.abs()
    raise ValueError(f"estimator={estimator}: allowed are k1, k2, k3, abs, k1+, k3+, abs+")


def kl_penalty(log_probs: Tensor, ref_log_probs: Tensor, mask: Tensor, coef: float, estimator: KLEstimator) -> Tensor:
    """Return coef × KL of each token, which ``placement=reward`` subtracts from its reward.

    Args:
        log_probs: Log-probs under the policy that acted, float [B, L].
        ref_log_probs: Log-probs under the reference, float [B, L].
        mask: Tokens of the policy, bool [B, L].
        coef: Current coefficient.
        estimator: Name of the estimator.

    Returns:
        Penalties, float [B, L], zero outside the mask.
    """
    inside = [tensor.masked_fill(~mask, 0.0) for tensor in (log_probs, ref_log_probs)]
    return coef * estimate_kl(inside[0], inside[1], estimator)


def update_kl_coef(coef: float, observed_kl: float, num_rows: int, config: KLConfig) -> float:
    """Return the coefficient for the next iteration.

    Without a target it stays; otherwise it is coef·(1 + clip(KL/target − 1, ±0.2)·min(num_rows/horizon, 1)). The
    minimum is our addition, which keeps it positive for any number of rows. The coefficient is the whole state of the
    controller, so it belongs in the checkpoint. Ziegler et al. 2019, arXiv:1909.08593, section 2.2.

    Args:
        coef: Current coefficient, initially ``config.coef``.
        observed_kl: Mean KL over the tokens of this iteration, on all ranks.
        num_rows: Number of rows in this iteration, on all ranks.
        config: Target and horizon.
    """
    if config.target is None:
        return coef
    error = min(max(observed_kl / config.target - 1.0, -0.2), 0.2)
    return coef * (1.0 + error * min(num_rows / config.horizon, 1.0))

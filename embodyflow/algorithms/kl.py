"""How far the policy has moved from the reference, and how hard it is held back.

Per token, with d = log π − log π_ref on tokens sampled from π (Schulman 2020, "Approximating KL divergence",
joschu.net/blog/kl-approx.html). As a loss, ``k1`` has the wrong gradient (that of log π, zero in expectation)
and ``k3`` a biased one; the form with ``+`` keeps the value and takes ``k2``'s gradient, which is the KL's.
"""

from torch import Tensor

from embodyflow.algorithms.configuration import KLConfig, KLEstimator
from embodyflow.algorithms.masked import Metrics, token_mean

_MAX_LOG_RATIO = 20.0
_MAX_K3 = 10.0


def estimate_kl(log_probs: Tensor, ref_log_probs: Tensor, estimator: KLEstimator) -> Tensor:
    """Return the estimate for each token.

    ``k1``: d; ``abs``: |d|; ``k2``: d²/2; ``k3``: e^(−d) + d − 1 with −d held within ±20 and the result below
    10, beyond which it has no gradient; with ``+``: that value and the gradient of ``k2``.

    Args:
        log_probs: float [B, L], finite.
        ref_log_probs: float [B, L], finite.
        estimator: which.

    Returns:
        float [B, L].
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


def subtract_kl(
    rewards: Tensor,
    log_probs: Tensor,
    ref_log_probs: Tensor,
    mask: Tensor,
    coef: float,
    config: KLConfig,
) -> tuple[Tensor, Metrics]:
    """Return the rewards minus coef × KL, for ``placement=reward``.

    Args:
        rewards: float [B, L].
        log_probs: float [B, L], of the policy that acted.
        ref_log_probs: float [B, L].
        mask: bool [B, L]; rewards outside it stay as they are.
        coef: the controller's present coefficient.
        config: names the estimator.

    Returns:
        float [B, L], and the metric ``policy/reference_kl``.
    """
    inside = [tensor.masked_fill(~mask, 0.0) for tensor in (log_probs, ref_log_probs)]
    kl = estimate_kl(inside[0], inside[1], config.estimator)
    return rewards - coef * kl, {"policy/reference_kl": token_mean(kl, mask)}


def update_kl_coef(coef: float, observed_kl: float, num_rows: int, config: KLConfig) -> float:
    """Return the coefficient for the next iteration.

    Without a target the present one; else coef·(1 + clip(KL/target − 1, ±0.2)·num_rows/horizon). The
    coefficient is the controller's whole state: keep it with the checkpoint. Ziegler et al. 2019,
    arXiv:1909.08593, section 2.2.

    Args:
        coef: the present coefficient; at first ``config.coef``.
        observed_kl: mean over tokens in this iteration, all ranks.
        num_rows: rows of this iteration, all ranks.
        config: target and horizon.
    """
    if config.target is None:
        return coef
    error = min(max(observed_kl / config.target - 1.0, -0.2), 0.2)
    return coef * (1.0 + error * num_rows / config.horizon)

"""Policy losses, per token.

A loss gives the contribution of each token, :mod:`embodyflow.algorithms.aggregation` turns tokens into a number, and
:func:`embodyflow.algorithms.objective.policy_objective` combines the two. In the formulas d = log π − log π_old and
ρ = exp d. Inputs are zero outside the mask when a loss sees them (:meth:`LossInputs.zero_outside_mask`), so nothing
there can reach a gradient.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.algorithms.algorithm_registry import LOSSES
from embodyflow.algorithms.masked import Metrics, row_mean, token_mean
from embodyflow.references import resolve

MAX_LOG_RATIO = 20.0
"""Bound on |d| of a token: exp(20) ≈ 5e8 is beyond any clip, and exp(90) is infinite in float32."""

MAX_ROW_LOG_RATIO = 10.0
"""Upper bound on the log of gspo's ratio."""


@dataclass(frozen=True)
class LossInputs:
    """Inputs of a loss: one micro-batch of rows B × tokens L.

    Attributes:
        log_probs: Log-probs under the policy in training, float [B, L], with gradient.
        old_log_probs: Log-probs in the denominator of the ratio, float [B, L].
        advantages: Advantages, float [B, L].
        mask: Tokens of the policy, bool [B, L].
        ref_log_probs: Log-probs under the reference, float [B, L], if the loss has a KL term.
        entropy: Entropy, float [B, L] with gradient, if there is an entropy bonus.
        selected: Selection by :func:`embodyflow.algorithms.covariance.select_tokens`, bool [B, L], if the loss selects
            tokens.
        high_entropy: Selection by :func:`embodyflow.algorithms.selection.top_entropy_tokens`, bool [B, L], of the
            tokens that have a policy loss; ``None`` means all.
        behavior_weights: Factors of the policy loss from :func:`embodyflow.algorithms.behavior.behavior_weights`,
            float [B, L].
    """

    log_probs: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    mask: Tensor
    ref_log_probs: Tensor | None = None
    entropy: Tensor | None = None
    selected: Tensor | None = None
    high_entropy: Tensor | None = None
    behavior_weights: Tensor | None = None

    def zero_outside_mask(self) -> "LossInputs":
        """Return the inputs with every tensor zero outside the mask, even where it was NaN.

        Raises:
            ValueError: The mask is not bool, or a tensor has another shape.
        """
        if self.mask.dtype != torch.bool:
            raise ValueError(f"mask: dtype {self.mask.dtype}; allowed: torch.bool")
        tensors = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        for name, tensor in tensors.items():
            if tensor.shape != self.mask.shape:
                raise ValueError(f"{name}: shape {list(tensor.shape)}; allowed: {list(self.mask.shape)} as the mask")
        outside = ~self.mask
        return replace(self, **{name: tensor.masked_fill(outside, 0) for name, tensor in tensors.items()})


LossFunction = Callable[[LossInputs, AlgorithmConfig], tuple[Tensor, Metrics]]
"""A policy loss: returns a loss per token, float [B, L], and metrics."""


def find_loss(name: str) -> LossFunction:
    """Return the policy loss that ``algorithm.loss`` names.

    Raises:
        ConfigError: No such loss exists.
    """
    function: LossFunction = resolve(LOSSES.resolve(name).function)
    return function


def _log_ratio(inputs: LossInputs) -> Tensor:
    return (inputs.log_probs - inputs.old_log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _two_sided(ratio: Tensor, inputs: LossInputs, config: AlgorithmConfig) -> tuple[Tensor, Metrics]:
    """Return PPO's max(−A·ρ, −A·clip(ρ)), and the fraction of clipped tokens."""
    plain = -inputs.advantages * ratio
    clipped = -inputs.advantages * ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    return torch.maximum(plain, clipped), {"policy/clip_fraction": token_mean(clipped > plain, inputs.mask)}


def _selected(inputs: LossInputs, loss: str) -> Tensor:
    if inputs.selected is None:
        raise ValueError(f"selected: missing; loss={loss} needs the tokens that select_tokens returns")
    return inputs.selected


def ppo(inputs: LossInputs, config: AlgorithmConfig) -> tuple[Tensor, Metrics]:
    """Return the clipped surrogate, with dual clip unless ``clip_ratio_c`` is ``null``.

    max(−A·ρ, −A·clip(ρ, 1−ε_low, 1+ε_high)), and at most −A·c where A < 0. Schulman et al. 2017, arXiv:1707.06347; dual
    clip: Ye et al. 2020, arXiv:1912.09729. With clip_high > clip_low it is DAPO's clip-higher (Yu et al. 2025,
    arXiv:2503.14476).
    """
    loss, metrics = _two_sided(_log_ratio(inputs).exp(), inputs, config)
    if config.clip_ratio_c is None:
        return loss, metrics
    bound = -inputs.advantages * config.clip_ratio_c
    bounded = (inputs.advantages < 0) & (loss > bound)
    metrics["policy/dual_clip_fraction"] = token_mean(bounded, inputs.mask)
    return torch.where(bounded, bound, loss), metrics


def gspo(inputs: LossInputs, config: AlgorithmConfig) -> tuple[Tensor, Metrics]:
    """Return PPO's surrogate of the row's ratio s = exp(mean d), without dual clip.

    It has the token form ρ_t = sg[s]·π_t / sg[π_t], which has the same value and gradient for one advantage per row.
    Zheng et al. 2025, "Group sequence policy optimization", arXiv:2507.18071, with clip ranges of about 3e-4.
    """
    row = row_mean(inputs.log_probs - inputs.old_log_probs, inputs.mask).detach()
    log_ratio = inputs.log_probs - inputs.log_probs.detach() + row
    return _two_sided(log_ratio.clamp(max=MAX_ROW_LOG_RATIO).exp(), inputs, config)


def gmpo(inputs: LossInputs, config: AlgorithmConfig) -> tuple[Tensor, Metrics]:
    """Return −A times the geometric mean over the row of the clipped token ratios.

    Each log-ratio is clipped to [−ε_low, ε_high] on the side where PPO clips: min(sgn A·d, sgn A·clip(d))·sgn A. Zhao
    et al. 2025, "Geometric-mean policy optimization", arXiv:2507.20673, with the range ±0.4. Two things are ours: d is
    bounded by ±``MAX_LOG_RATIO`` first, which matters only where the paper's ratio would overflow or vanish, and a row
    without tokens has the loss 0 and does not count in the mean over rows, as in every loss.
    """
    log_ratio, sign = _log_ratio(inputs), inputs.advantages.sign()
    clipped = log_ratio.clamp(-config.clip_low, config.clip_high)
    pessimistic = torch.minimum(sign * log_ratio, sign * clipped) * sign
    ratio = row_mean(pessimistic, inputs.mask).exp()
    acted = sign * clipped < sign * log_ratio
    return -inputs.advantages * ratio, {"policy/clip_fraction": token_mean(acted, inputs.mask)}


def cispo(inputs: LossInputs, config: AlgorithmConfig) -> tuple[Tensor, Metrics]:
    """Return −sg[clip(ρ, 1−ε_low, 1+ε_high)]·A·log π: the weight is clipped, so no token loses its gradient.

    The paper has no lower bound, which is ``clip_low=1``, the default of this loss. MiniMax 2025, "MiniMax-M1",
    arXiv:2506.13585.
    """
    ratio = _log_ratio(inputs).exp().detach()
    weight = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    metrics = {"policy/clip_fraction": token_mean(weight != ratio, inputs.mask)}
    return -weight * inputs.advantages * inputs.log_probs, metrics


def cpgd(inputs: LossInputs, config: AlgorithmConfig) -> tuple[Tensor, Metrics]:
    """Return the policy gradient clipped in log space, with a policy drift that pulls back to the old policy.

    −A·min(log π, log π_old + log(1+ε_high)) where A > 0, −A·max(log π, log π_old + log(1−ε_low)) elsewhere, plus
    drift_coef·min(sg[ρ] − 1, max_drift)·log π. Liu et al. 2025, arXiv:2505.12504.
    """
    log_probs, old = inputs.log_probs, inputs.old_log_probs
    upper = torch.minimum(log_probs, old + math.log1p(config.clip_high))
    lower = torch.maximum(log_probs, old + math.log1p(-config.clip_low))
    clipped = torch.where(inputs.advantages > 0, upper, lower)
    metrics = {"policy/clip_fraction": token_mean(clipped != log_probs, inputs.mask)}
    loss = -inputs.advantages * clipped
    if config.cpgd.drift_coef == 0:
        return loss, metrics
    drift = _log_ratio(inputs).detach().expm1().clamp(max=config.cpgd.max_drift)
    return loss + config.cpgd.drift_coef * drift * log_probs, metrics


def clip_cov(inputs: LossInputs, config: AlgorithmConfig) -> tuple[Tensor, Metrics]:
    """Return PPO's surrogate without the selected tokens, a random share of those with high covariance.

    A selected token that is clipped already keeps its loss, which has no gradient. Cui et al. 2025, arXiv:2505.22617.
    """
    selected, ratio = _selected(inputs, "clip_cov"), _log_ratio(inputs).exp()
    loss, metrics = _two_sided(ratio, inputs, config)
    left_out = selected & ~(loss > -inputs.advantages * ratio)
    metrics["policy/selected_fraction"] = token_mean(left_out, inputs.mask)
    return loss.masked_fill(left_out, 0.0), metrics


def kl_cov(inputs: LossInputs, config: AlgorithmConfig) -> tuple[Tensor, Metrics]:
    """Return −A·ρ plus a penalty kl_coef·|d| on the selected tokens, which have the highest covariance.

    Cui et al. 2025, arXiv:2505.22617.
    """
    selected = _selected(inputs, "kl_cov")
    distance = (inputs.log_probs - inputs.old_log_probs).abs()
    loss = -inputs.advantages * _log_ratio(inputs).exp() + config.covariance.kl_coef * distance * selected
    return loss, {"policy/selected_fraction": token_mean(selected, inputs.mask)}


def gpg(inputs: LossInputs, config: AlgorithmConfig) -> tuple[Tensor, Metrics]:
    """Return −A·log π, the plain policy gradient. It has no ratio, so it allows a single pass over fresh rows.

    Chu et al. 2025, "GPG: a simple and strong reinforcement learning baseline for model reasoning",
    arXiv:2504.02546.
    """
    return -inputs.advantages * inputs.log_probs, {}


def sapo(inputs: LossInputs, config: AlgorithmConfig) -> tuple[Tensor, Metrics]:
    """Return −A·(4/τ)·sigmoid(τ·(ρ − 1)): a soft gate in place of PPO's clip, whose gradient fades away from ρ = 1.

    τ is ``sapo.tau_positive`` where A > 0 and ``sapo.tau_negative`` elsewhere; the larger one fades faster. Gao et al.
    2025, "Soft adaptive policy optimization", arXiv:2511.20347.
    """
    tau = torch.where(inputs.advantages > 0, config.sapo.tau_positive, config.sapo.tau_negative)
    gate = torch.sigmoid(tau * (_log_ratio(inputs).exp() - 1.0)) * (4.0 / tau)
    return -inputs.advantages * gate, {}

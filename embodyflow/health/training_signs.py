"""Detectors of a policy that training ruins: NaN, spikes, collapse of the entropy, a runaway KL."""

import math
from collections.abc import Iterator

from embodyflow.health.history import Finding, History
from embodyflow.health.settings import EntropyCollapseConfig, KLRunawayConfig, NaNConfig, SpikeConfig

LOSSES = ("train/grad_norm", "critic/grad_norm", "policy/pg_loss", "policy/loss", "critic/loss", "policy/entropy")
"""Metrics that are finite in every run that can go on."""

STEP_KL = "policy/old_kl"
"""KL between the policies before and after an iteration's steps. It grows with the square of the learning rate."""

POSITIVE = ("train/grad_norm", "critic/grad_norm", "critic/loss")
"""Metrics whose ratio to their earlier values has a meaning. The policy's loss is not among them: it changes sign."""


LEAST = 3
"""Number of earlier iterations that a spike is compared with at least, as after the start or a roll-back to it."""


def nan(history: History, config: NaNConfig) -> Finding | None:
    """Find a loss, a gradient norm or an entropy that is NaN or inf."""
    for name in LOSSES:
        value = history.newest(name)
        if value is not None and not math.isfinite(value):
            return Finding(name, value, 0.0, f"{name} is {value}")
    return None


def spike(history: History, config: SpikeConfig) -> Finding | None:
    """Find a gradient norm or a critic's loss far above the median of the iterations before."""
    for name in POSITIVE:
        before, now = history.median_before(name, 1, config.window, least=LEAST), history.recent(name, 1)
        if before and now and now[0] > config.factor * before:
            what = f"{name}={now[0]:.4g} is more than {config.factor:g} times its median {before:.4g}"
            return Finding(name, now[0], config.factor * before, f"{what} of earlier iterations")
        known = history.thresholds.get(name)
        if before is None and known is not None and now and now[0] > known:
            text = f"{name}={now[0]:.4g} is above {known:.4g}, as before the roll-back"
            return Finding(name, now[0], known, text)
    return None


def entropy_collapse(history: History, config: EntropyCollapseConfig) -> Finding | None:
    """Find an entropy far below that of the first iterations."""
    name = "policy/entropy"
    first, recent = history.first_median(name, config.baseline), history.recent(name, config.patience)
    if first is None or not recent or len(history.values(name)) < config.baseline + config.patience:
        return None
    if config.max_fall is None and first <= 0:  # a share of a negative number has no meaning
        return None
    least = config.share * first if config.max_fall is None else first - config.max_fall
    if max(recent) >= least:
        return None
    text = f"{name}={recent[-1]:.4g} is below {least:.4g}, after {first:.4g} in the first iterations"
    return Finding(name, recent[-1], least, text)


def kl_runaway(history: History, config: KLRunawayConfig) -> Finding | None:
    """Find a policy that moves too far in an iteration, or has moved too far from its reference."""
    scale = _scale(history)
    for name, most in _limits(config, scale):
        recent = history.recent(name, config.patience)
        if recent and min(map(abs, recent)) > most:  # the estimate k1 of a step may be negative
            text = f"{name}={recent[-1]:.4g} is above {most:g} nats per token"
            factor = math.sqrt(config.usual_share * scale / abs(recent[-1])) if name == STEP_KL else None
            return Finding(name, recent[-1], most, text, rate_factor=factor)
    return None


def _limits(config: KLRunawayConfig, scale: float) -> Iterator[tuple[str, float]]:
    yield STEP_KL, min(config.max_step, math.inf if config.max_share is None else config.max_share * scale)
    yield "policy/kl_to_reference", config.max_to_reference


def _scale(history: History) -> float:
    """Return the policy's entropy in nats per token; 1 without one, or for a density with a negative one."""
    entropy = history.newest("policy/entropy")
    return entropy if entropy is not None and entropy > 0 and math.isfinite(entropy) else 1.0

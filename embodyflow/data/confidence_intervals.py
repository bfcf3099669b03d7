"""Confidence intervals of rates."""

import math


def wilson_interval(successes: float, trials: float, z: float = 1.959964) -> tuple[float, float]:
    """Return the Wilson score interval of a binomial rate (Wilson, 1927; 95 % by default).

    Args:
        successes: Number of successes, ``0 <= successes <= trials``.
        trials: Number of trials, at least 1.
        z: Standard normal quantile of the confidence level.

    Raises:
        ValueError: There are no trials, or more successes than trials.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"successes={successes}, trials={trials}: needs 0 <= successes <= trials and trials >= 1")
    rate = successes / trials
    centre = rate + z * z / (2 * trials)
    margin = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max(0.0, (centre - margin) / scale), min(1.0, (centre + margin) / scale)

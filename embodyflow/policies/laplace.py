"""The Laplace distribution: the log-density of a regression that minimises the absolute error (L1).

The density of x with the median m and the scale b is exp(-|x - m| / b) / 2b. Its standard deviation is b·√2.
"""

import torch
from torch import Tensor
from torch.nn import functional

LANES = 64
"""Multiple of the numbers that a processor computes at once."""
LARGEST_QUANTILE = 0.5 - 2.0**-26
"""Bound of the distance of a quantile from the median: uniforms of 24 bits include 0, whose sample is infinite."""


def standard_samples(uniforms: Tensor) -> Tensor:
    """Return samples with the median 0 and the scale 1, float32 ``[n, k]``, by inverting the distribution function.

    A row gets the same bits in any batch: torch computes the last few numbers of a tensor otherwise than those before,
    so rows are padded to whole lanes.

    Args:
        uniforms: Random numbers in [0, 1), float32 ``[n, k]``.
    """
    width = uniforms.shape[-1]
    quantiles = functional.pad(uniforms.double() - 0.5, (0, -width % LANES))
    distances = -torch.log1p(-2.0 * quantiles.abs().clamp(max=LARGEST_QUANTILE))
    return (torch.sign(quantiles) * distances)[..., :width].float().contiguous()


def log_densities(values: Tensor, medians: Tensor, scales: Tensor) -> Tensor:
    """Return the log-densities of values, of the shape that the three have together."""
    return -(values - medians).abs() / scales - torch.log(2.0 * scales)


def entropies(scales: Tensor) -> Tensor:
    """Return the differential entropies, in nats: 1 + log 2b."""
    return 1.0 + torch.log(2.0 * scales)

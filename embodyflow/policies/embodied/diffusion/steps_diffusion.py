"""Denoising steps of a diffusion model, which are Gaussian and so have a likelihood to train on.

A diffusion mixes an action with noise. At level n of N the mixture is::

    x[n] = √ᾱ[n]·action + √(1 - ᾱ[n])·noise

where ᾱ falls from 1 at level 0, the action, to nearly 0 at level N, by the cosine schedule (Nichol and Dhariwal, 2021,
arXiv:2102.09672). A network predicts the velocity v = √ᾱ[n]·noise - √(1 - ᾱ[n])·action (Salimans and Ho, 2022,
arXiv:2202.00512), from which follow::

    action = √ᾱ[n]·x - √(1 - ᾱ[n])·v        noise = √(1 - ᾱ[n])·x + √ᾱ[n]·v

Diffusion Policy (Chi et al., 2023, arXiv:2303.04137) predicts the noise. The action then follows by a division by
√ᾱ[n], which multiplies errors of the first steps by a hundred or more. A step from level n to a lower level m is that
of DDIM (Song et al., 2021, arXiv:2010.02502)::

    x[m] ~ N( √ᾱ[m]·action + √(1 - ᾱ[m] - σ²)·noise,  σ² )        σ² = η²·(1 - ᾱ[m]) / (1 - ᾱ[n])·(1 - ᾱ[n] / ᾱ[m])

With η = 1 and all N levels these are the steps of DDPM (Ho et al., 2020, arXiv:2006.11239). DPPO (Ren et al., 2024,
arXiv:2409.00588) trains on the log-probs of the steps and bounds σ from below: the last step has σ = 0, which leaves
nothing to explore, and small deviations make log-probs, and so ratios, very steep.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor

from embodyflow.policies.flow_sde import as_column, gaussian_entropy, gaussian_log_density

OFFSET = 0.008
"""Offset of the cosine schedule, which keeps the first levels apart."""

LARGEST_BETA = 0.999
"""Bound on the share of the variance that one level adds, as in the authors' implementation."""


class DenoisingSteps:
    """K steps from level N, noise, to level 0, the action, evenly spread over the levels.

    Args:
        num_levels: N, number of noise levels.
        num_steps: K, number of steps, at most N.
        eta: η in [0, 1].
        min_noise: Least deviation that a step is sampled with, positive.
        min_log_prob_noise: Least deviation in log-probs and entropies, positive.

    Attributes:
        levels: Levels at which the K steps begin.
    """

    def __init__(
        self, num_levels: int, num_steps: int, *, eta: float, min_noise: float, min_log_prob_noise: float
    ) -> None:
        self.levels = [-(-num_levels * (num_steps - step) // num_steps) for step in range(num_steps)]
        self._shares = signal_shares(num_levels)
        ends = [(self._shares[start], self._shares[end]) for start, end in pairwise([*self.levels, 0])]
        variances = [eta**2 * (1 - end) / (1 - start) * (1 - start / end) for start, end in ends]
        self._factors = [_factors(*each, variance) for each, variance in zip(ends, variances, strict=True)]
        self._certain = [_factors(*each, 0.0) for each in ends]
        self._deviations = [max(math.sqrt(variance), min_noise) for variance in variances]
        self._log_prob_deviations = [max(math.sqrt(variance), min_log_prob_noise) for variance in variances]

    def mixed(self, actions: Tensor, noise: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mixtures of actions and noise, and their velocities, both float32 ``[n, C, A]``.

        Args:
            actions: Standardised actions, float32 ``[n, C, A]``.
            noise: Standard normals of that shape.
            levels: Level of each row, int64 ``[n]``.
        """
        shares = torch.tensor(self._shares, dtype=torch.float64, device=levels.device)[levels]
        signal, rest = (share.sqrt().to(actions.dtype)[:, None, None] for share in (shares, 1 - shares))
        return signal * actions + rest * noise, signal * noise - rest * actions

    def deterministic(self, points: Tensor, velocities: Tensor, step: int) -> Tensor:
        """Return the ends of one step with η = 0 from points ``[..., A]`` with these velocities."""
        keep, move = self._certain[step]
        return keep * points + move * velocities

    def means(self, points: Tensor, velocities: Tensor, steps: slice) -> Tensor:
        """Return the means of the Gaussian steps, float32 ``[..., k, A]``.

        Args:
            points: Starts of k steps, float32 ``[..., k, A]``.
            velocities: Velocities at the starts, of that shape.
            steps: Slice of the K steps that they are.
        """
        keep, move = (as_column(list(each), points) for each in zip(*self._factors[steps], strict=True))
        return keep * points + move * velocities

    def deviations(self, steps: slice, like: Tensor, temperature: float) -> Tensor:
        """Return the deviations that steps are sampled with, ``[k, 1]``; each density is raised to 1/temperature."""
        return as_column([each * math.sqrt(temperature) for each in self._deviations[steps]], like)

    def log_probs(self, chain: Tensor, velocities: Tensor, steps: slice, temperature: float) -> Tensor:
        """Return the log-density of every dimension of k steps, float32 ``[..., k, A]``.

        Args:
            chain: Points of the steps from the first one's start on, float32 ``[..., k + 1, A]``.
            velocities: Velocities at all points but the last, float32 ``[..., k, A]``.
            steps: Slice of the K steps that they are.
            temperature: Temperature of the densities, see :meth:`deviations`.
        """
        means = self.means(chain[..., :-1, :], velocities, steps)
        return gaussian_log_density(chain[..., 1:, :], means, self._measured(steps, chain, temperature))

    def entropy(self, steps: slice, like: Tensor, temperature: float) -> Tensor:
        """Return the differential entropy of one dimension of each step, ``[k]``, in nats."""
        return gaussian_entropy(self._measured(steps, like, temperature)).squeeze(-1)

    def _measured(self, steps: slice, like: Tensor, temperature: float) -> Tensor:
        """Return the deviations of log-probs and entropies, ``[k, 1]``."""
        return as_column([each * math.sqrt(temperature) for each in self._log_prob_deviations[steps]], like)


def signal_shares(num_levels: int) -> list[float]:
    """Return ᾱ of the levels 0 to N by the cosine schedule; it falls strictly from 1 and stays positive."""
    times = [(level / num_levels + OFFSET) / (1 + OFFSET) for level in range(num_levels + 1)]
    curve = [math.cos(time * math.pi / 2) ** 2 for time in times]
    shares = [1.0]
    for before, after in pairwise(curve):
        shares.append(shares[-1] * (1 - min(1 - after / before, LARGEST_BETA)))
    return shares


def _factors(start: float, end: float, variance: float) -> tuple[float, float]:
    """Return the factors of point and velocity in the mean of a step.

    Args:
        start: ᾱ at the start of the step.
        end: ᾱ at its end.
        variance: σ² of the step.
    """
    signal, rest = math.sqrt(start), math.sqrt(1 - start)
    action, noise = math.sqrt(end), math.sqrt(max(1 - end - variance, 0.0))  # rounding may take it below 0
    return action * signal + noise * rest, noise * signal - action * rest

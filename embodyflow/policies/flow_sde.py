"""Denoising by a stochastic differential equation: what a flow decides then has probabilities to learn by.

A flow turns noise, at time 1, into an action, at time 0, by the ordinary differential equation dx/dt = v(x, t), whose
velocity v is learned from the straight lines x = t·noise + (1 - t)·action. Its steps are certain: no likelihood to
learn by. Flow-SDE (πRL, Chen et al., 2025, arXiv:2510.25889, after Flow-GRPO, Liu et al., 2025, arXiv:2505.05470)
takes Gaussian steps instead, of the same marginal distributions::

    x[t - δ] ~ N( x - δ·[v + σ²/(2t)·(x + (1 - t)·v)],  σ²·δ )        σ = a·√(t / (1 - t))

for velocity v at x = x[t]. The bracket's second term leads against the score, which is -(x + (1 - t)·v) / t, as much as
the noise blurs. At t = 1, where σ has a pole, 1 - t is that of the next time, as in πRL's code: the first step has the
variance a² however short it is, and leaves a⁴/4 more variance than the flow has there, which later steps forget.
"""

import math

import torch
from torch import Tensor


class FlowSDE:
    """The steps from noise to action, of one length.

    Args:
        num_steps: K; step k begins at time 1 - k/K.
        noise_level: a, positive; near 0 the steps are those of the ordinary equation.
    """

    def __init__(self, num_steps: int, noise_level: float) -> None:
        self.num_steps, self._length = num_steps, 1.0 / num_steps
        self.times = [1.0 - step * self._length for step in range(num_steps)]
        self._variances = [noise_level**2 * self._length * t / max(1.0 - t, self._length) for t in self.times]

    def certain(self, points: Tensor, velocities: Tensor) -> Tensor:
        """Return where the ordinary equation's step leads from points ``[..., A]``, of these velocities."""
        return points - self._length * velocities

    def means(self, points: Tensor, velocities: Tensor, steps: slice) -> Tensor:
        """Return the Gaussians' means, float32 ``[..., k, A]``.

        Args:
            points: float32 ``[..., k, A]``, where each of k steps begins.
            velocities: of that shape, there.
            steps: which of the K they are.
        """
        times = _column(self.times[steps], points)
        pull = _column([variance / 2.0 for variance in self._variances[steps]], points) / times
        return self.certain(points, velocities) - pull * (points + (1.0 - times) * velocities)

    def deviations(self, steps: slice, like: Tensor, temperature: float) -> Tensor:
        """Return the Gaussians' deviations, ``[k, 1]``: each density is raised to 1/temperature."""
        return _column([math.sqrt(variance * temperature) for variance in self._variances[steps]], like)

    def log_probs(self, chain: Tensor, velocities: Tensor, temperature: float) -> Tensor:
        """Return the log-density of every dimension of every step, float32 ``[..., K, A]``.

        Args:
            chain: float32 ``[..., K + 1, A]``, from noise to action.
            velocities: float32 ``[..., K, A]``, at all its points but the last.
            temperature: see :meth:`deviations`.
        """
        every = slice(None)
        deviations = self.deviations(every, chain, temperature)
        normals = (chain[..., 1:, :] - self.means(chain[..., :-1, :], velocities, every)) / deviations
        return -0.5 * normals.square() - deviations.log() - 0.5 * math.log(2 * math.pi)

    def entropy(self, like: Tensor, temperature: float) -> Tensor:
        """Return the differential entropy of one dimension of each step, in nats, ``[K]``."""
        deviations = self.deviations(slice(None), like, temperature)
        return (deviations.log() + 0.5 * math.log(2 * math.pi * math.e)).squeeze(-1)


def standard_normals(uniforms: Tensor) -> Tensor:
    """Return standard normals, float32, of uniforms in [0, 1), by the quantile function."""
    return torch.special.ndtri(uniforms.double().clamp(1e-12, 1 - 1e-12)).float()


def _column(numbers: list[float], like: Tensor) -> Tensor:
    return torch.tensor(numbers, dtype=like.dtype, device=like.device)[:, None]

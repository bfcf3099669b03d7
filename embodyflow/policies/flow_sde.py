"""Denoising by a stochastic differential equation, which gives a flow's decisions a likelihood to train on.

A flow turns noise, at time 1, into an action, at time 0, by the ordinary differential equation dx/dt = v(x, t). Its
velocity v is learned from the straight lines x = t·noise + (1 - t)·action. These steps are deterministic and have no
likelihood. Flow-SDE (πRL, Chen et al., 2025, arXiv:2510.25889, after Flow-GRPO, Liu et al., 2025, arXiv:2505.05470)
takes Gaussian steps with the same marginal distributions instead::

    x[t - δ] ~ N( x - δ·[v + σ²/(2t)·(x + (1 - t)·v)],  σ²·δ )        σ = a·√(t / (1 - t))

for velocity v at x = x[t]. The bracket's second term moves x along the score, -(x + (1 - t)·v) / t, which undoes the
blur of the noise. At t = 1, where σ has a pole, 1 - t is taken from the next time, as in πRL's code. The first step
then has the variance a² however short it is. It leaves a⁴/4 more variance than the flow has there, which later steps
remove.
"""

import math

import torch
from torch import Tensor


class FlowSDE:
    """Equally long steps from noise to action.

    Args:
        num_steps: K, number of steps; step k begins at time 1 - k/K.
        noise_level: a, positive; near 0 the steps approach those of the ordinary equation.
    """

    def __init__(self, num_steps: int, noise_level: float) -> None:
        self.num_steps, self._length = num_steps, 1.0 / num_steps
        self.times = [1.0 - step * self._length for step in range(num_steps)]
        self._variances = [noise_level**2 * self._length * t / max(1.0 - t, self._length) for t in self.times]

    def deterministic(self, points: Tensor, velocities: Tensor, step: int) -> Tensor:
        """Return the ends of a step of the ordinary equation from points ``[..., A]``; all steps are equally long."""
        del step
        return points - self._length * velocities

    def means(self, points: Tensor, velocities: Tensor, steps: slice) -> Tensor:
        """Return the means of the Gaussian steps, float32 ``[..., k, A]``.

        Args:
            points: Starts of k steps, float32 ``[..., k, A]``.
            velocities: Velocities at the starts, of that shape.
            steps: Slice of the K steps that they are.
        """
        times = as_column(self.times[steps], points)
        pull = as_column([variance / 2.0 for variance in self._variances[steps]], points) / times
        return points - self._length * velocities - pull * (points + (1.0 - times) * velocities)

    def deviations(self, steps: slice, like: Tensor, temperature: float) -> Tensor:
        """Return the standard deviations of the Gaussian steps, ``[k, 1]``; each density is raised to 1/temperature."""
        return as_column([math.sqrt(variance * temperature) for variance in self._variances[steps]], like)

    def log_probs(self, chain: Tensor, velocities: Tensor, temperature: float) -> Tensor:
        """Return the log-density of every dimension of every step, float32 ``[..., K, A]``.

        Args:
            chain: Points from noise to action, float32 ``[..., K + 1, A]``.
            velocities: Velocities at all points but the last, float32 ``[..., K, A]``.
            temperature: Temperature of the densities, see :meth:`deviations`.
        """
        every = slice(None)
        means = self.means(chain[..., :-1, :], velocities, every)
        return gaussian_log_density(chain[..., 1:, :], means, self.deviations(every, chain, temperature))

    def entropy(self, like: Tensor, temperature: float) -> Tensor:
        """Return the differential entropy of one dimension of each step, ``[K]``, in nats."""
        return gaussian_entropy(self.deviations(slice(None), like, temperature)).squeeze(-1)


def gaussian_log_density(points: Tensor, means: Tensor, deviations: Tensor) -> Tensor:
    """Return the log-density of each number under its own Gaussian, of the shape of ``points``."""
    normals = (points - means) / deviations
    return -0.5 * normals.square() - deviations.log() - 0.5 * math.log(2 * math.pi)


def gaussian_entropy(deviations: Tensor) -> Tensor:
    """Return the differential entropies of Gaussians in nats, of the shape of ``deviations``."""
    return deviations.log() + 0.5 * math.log(2 * math.pi * math.e)


def standard_normals(uniforms: Tensor) -> Tensor:
    """Map uniforms in [0, 1) to standard normals, float32, by the quantile function."""
    return torch.special.ndtri(uniforms.double().clamp(1e-12, 1 - 1e-12)).float()


def as_column(numbers: list[float], like: Tensor) -> Tensor:
    """Return k numbers as a tensor ``[k, 1]`` of the dtype and device of ``like``."""
    return torch.tensor(numbers, dtype=like.dtype, device=like.device)[:, None]

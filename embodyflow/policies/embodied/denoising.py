"""The loop from noise to actions of policies that denoise in Gaussian steps."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor


class GaussianSteps(Protocol):
    """K steps from noise to actions."""

    def deterministic(self, points: Tensor, velocities: Tensor, step: int) -> Tensor:
        """Return the ends of one step without noise from points ``[..., A]`` with these velocities."""

    def means(self, points: Tensor, velocities: Tensor, steps: slice) -> Tensor:
        """Return the means of k steps, float32 ``[..., k, A]``, from points and velocities of that shape."""

    def deviations(self, steps: slice, like: Tensor, temperature: float) -> Tensor:
        """Return the deviations of k steps, ``[k, 1]``; each density is raised to 1/temperature."""


def denoise(
    steps: GaussianSteps,
    num_steps: int,
    velocity: Callable[[Tensor, int], Tensor],
    start: Tensor,
    normals: Tensor | None,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Return the chains from noise to actions, float32 ``[n, H, K + 1, A]``, and the velocities ``[n, H, K, A]``.

    Args:
        steps: Steps.
        num_steps: K.
        velocity: Returns the velocities ``[n, H, A]`` at points of that shape at the start of a step.
        start: Noise, float32 ``[n, H, A]``.
        normals: Standard normals of the steps' noise, float32 ``[n, H, K, A]``; ``None`` takes steps without noise.
        temperature: Temperature of the densities.
    """
    points, velocities = [start], list[Tensor]()
    for step in range(num_steps):
        here = points[-1]
        velocities.append(velocity(here, step))
        if normals is None:
            points.append(steps.deterministic(here, velocities[-1], step))
            continue
        one = slice(step, step + 1)
        mean = steps.means(here[:, :, None], velocities[-1][:, :, None], one)
        noise = steps.deviations(one, here, temperature) * normals[:, :, step, None]
        points.append((mean + noise)[:, :, 0])
    return torch.stack(points, dim=2), torch.stack(velocities, dim=2)

"""Batch renormalisation (Ioffe 2017, arXiv:1702.03275), as the authors of CrossQ (arXiv:1902.05605) implement it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

EPSILON = 1e-3
"""Added to variances."""

LARGEST_RATIO = 3.0
"""Bound of r, the ratio of the batch's deviation to the running one, and of 1/r."""

LARGEST_SHIFT = 5.0
"""Bound of d, the distance of the batch's mean from the running one, in running deviations."""

SMALLEST_VARIANCE = 1e-20
"""Below this the batch's variance has no gradient through the shift: the gradient of a square root is infinite at 0."""


class BatchRenorm(nn.Module):
    """Normalises features by statistics of the batch in training mode, and by running statistics in evaluation mode.

    In training mode, after the warm-up, the batch's mean and variance are corrected by r and d, so that the result is
    nearly that of the running statistics while gradients pass through those of the batch. The limits of r and d are
    fixed after the warm-up; Ioffe relaxes them step by step. Each call in training mode moves the running statistics,
    which are buffers, and so part of every state dict.

    Args:
        size: F, number of features.
        num_members: K, number of normalisations beside each other, each of its own inputs; ``None`` is one, without
            an axis of its own.
        momentum: Share of the batch's statistics that moves into the running ones in a step.
        warmup_steps: First steps, in which batch normalisation takes the place of renormalisation.

    Attributes:
        mean: Running means, float32 ``[1, F]`` or ``[K, 1, F]``.
        variance: Running variances, of the same shape.
        steps: Number of steps that were taken, float64 ``[1]``.
    """

    mean: Tensor
    variance: Tensor
    steps: Tensor

    def __init__(self, size: int, num_members: int | None = None, *, momentum: float, warmup_steps: int) -> None:
        super().__init__()
        shape = (1, size) if num_members is None else (num_members, 1, size)
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self.register_buffer("steps", torch.zeros(1, dtype=torch.float64))
        self._momentum, self._warmup_steps = momentum, warmup_steps

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise float32 ``[..., B, F]``, or ``[K, B, F]`` for K members, over the axis B.

        In training mode, B must be at least 2 and further axes are not allowed.
        """
        mean, variance = self._batch_statistics(inputs) if self.training else (self.mean, self.variance)
        normalised: Tensor = (inputs - mean) / (variance + EPSILON).sqrt()
        return self.weight * normalised + self.bias

    def _batch_statistics(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the statistics to normalise by in training mode, and take a step of the running ones."""
        mean, variance = inputs.mean(-2, keepdim=True), inputs.var(-2, keepdim=True)
        used = (mean, variance) if self.steps < self._warmup_steps else self._corrected(mean, variance)
        self.mean.lerp_(mean.detach(), self._momentum)
        self.variance.lerp_(variance.detach(), self._momentum)
        self.steps.add_(1)
        return used

    def _corrected(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance whose normalisation is that of the batch, times r, plus d (equation 4)."""
        with torch.no_grad():
            running = (self.variance + EPSILON).sqrt()
            ratio = ((variance + EPSILON).sqrt() / running).clamp(1 / LARGEST_RATIO, LARGEST_RATIO)
            shift = ((mean - self.mean) / running).clamp(-LARGEST_SHIFT, LARGEST_SHIFT)
        deviation = variance.clamp(min=SMALLEST_VARIANCE).sqrt()
        return mean - shift * deviation / ratio, variance / ratio.square()


@contextmanager
def batch_statistics(model: nn.Module) -> Iterator[None]:
    """Normalise by the statistics of batches within the block, and leave the model in evaluation mode.

    Args:
        model: Model whose modules are :class:`BatchRenorm` and others that are the same in both modes.
    """
    model.train()
    try:
        yield
    finally:
        model.eval()

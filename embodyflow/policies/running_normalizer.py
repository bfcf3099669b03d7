"""Normalisation of states by the running mean and variance of the rows that a policy has trained on."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

EPSILON = 1e-8
"""Constant added to the variance, as in ``VecNormalize`` of Stable-Baselines3."""


class RunningNormalizer(nn.Module):
    """Maps states to ``clip((state - mean) / sqrt(variance + EPSILON), -limit, limit)``.

    The statistics are float64 buffers, so checkpoints, published weights and exports contain them. The forward pass
    does not change them. Until states are counted, the mean is 0 and the variance 1.

    Args:
        size: S, features of a state.
        limit: Bound of a normalised feature, in standard deviations.
    """

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, size: int, limit: float) -> None:
        super().__init__()
        self._limit = limit
        self.register_buffer("count", torch.zeros(1, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(size, dtype=torch.float64))

    def forward(self, state: Tensor) -> Tensor:
        """Return normalised states ``[..., S]`` in the dtype of ``state``."""
        normalised = (state.double() - self.mean) / torch.sqrt(self.variance + EPSILON)
        return normalised.clamp(-self._limit, self._limit).to(state.dtype)

    @torch.no_grad()
    def restart_from(self, states: Tensor) -> None:
        """Replace the statistics by those of ``states``, ``[n, S]``; n is at least 1."""
        for buffer, value in ((self.count, 0.0), (self.mean, 0.0), (self.variance, 1.0)):
            buffer.fill_(value)
        self.merge(states, lambda part: part)

    @torch.no_grad()
    def merge(self, states: Tensor, all_reduce: Callable[[Tensor], Tensor]) -> None:
        """Merge the moments of new states into the statistics.

        The formula is equation 2.1 of Chan, Golub and LeVeque, 1979, "Updating Formulae and a Pairwise Algorithm for
        Computing Sample Variances". The variance is that of a population: it divides by the number of states.

        Args:
            states: This rank's states, ``[n, S]``; n may be 0.
            all_reduce: Function that returns the elementwise sum over the ranks, bit-identical on every rank.

        Raises:
            FloatingPointError: A state is NaN or inf. The statistics stay as they were.
        """
        values = states.to(self.mean)
        sums = all_reduce(torch.cat([values.new_full((1,), len(values)), values.sum(0)]))
        added, mean = sums[:1], sums[1:] / sums[:1].clamp(min=1)
        squares = all_reduce((values - mean).square().sum(0))
        if not (mean.isfinite().all() and squares.isfinite().all()):
            raise FloatingPointError("state: a feature is NaN or inf, so the running statistics cannot count it")
        if added.item() == 0:
            return
        total, shift = self.count + added, mean - self.mean
        squares = self.variance * self.count + squares + shift.square() * (self.count * added / total)
        self.mean.add_(shift * (added / total))
        self.variance.copy_(squares / total)
        self.count.copy_(total)


def count_states(model: nn.Module, states: Tensor, decided: Tensor, all_reduce: Callable[[Tensor], Tensor]) -> None:
    """Merge the states of a batch's decisions into every :class:`RunningNormalizer` of a model.

    Args:
        model: Model after its optimizer steps. Every rank must have the same normalizers.
        states: States before each decision, ``[N, T, S]``.
        decided: Decisions that were taken, bool ``[N, T]``.
        all_reduce: Function that returns the elementwise sum over the ranks.
    """
    for module in normalizers_of(model):
        module.merge(states[decided], all_reduce)


def normalizers_of(model: nn.Module) -> list[RunningNormalizer]:
    """Return the normalizers among a model's modules."""
    return [module for module in model.modules() if isinstance(module, RunningNormalizer)]

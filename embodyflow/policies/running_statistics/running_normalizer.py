"""Normalisation of states by the running mean and variance of the rows that a policy has trained on."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from embodyflow.policies.running_statistics.running_moments import RunningMoments

EPSILON = 1e-8
"""Constant added to the variance, as in ``VecNormalize`` of Stable-Baselines3."""


class RunningNormalizer(RunningMoments):
    """Maps states to ``clip((state - mean) / sqrt(variance + EPSILON), -limit, limit)``.

    The forward pass does not change the statistics.

    Args:
        size: S, features of a state.
        limit: Bound of a normalised feature, in standard deviations.
    """

    def __init__(self, size: int, limit: float) -> None:
        super().__init__(size, "state: a feature")
        self._limit = limit

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

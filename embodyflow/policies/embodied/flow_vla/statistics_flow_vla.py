"""Statistics by which a policy normalises states and actions, kept as buffers so that they travel with the weights."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodyflow.policies.base import NormalizationStatistics

EPSILON = 1e-8
"""LeRobot's smallest divisor."""
SMALLEST_DEVIATION = 1e-2
"""Deviation, or half the range, of a feature that demonstrations do not vary."""


class Statistics(nn.Module, ABC):
    """Two statistics of each feature, float32 ``[S]`` or ``[A]``, in buffers such as ``state_mean``.

    Args:
        state_dim: S, features of a state.
        action_dim: A, dimensions of an action.

    Attributes:
        kinds: LeRobot's names of the two.
        mode: LeRobot's name of the normalisation.
        neutral: Values with which nothing is changed.
    """

    kinds: ClassVar[tuple[str, str]]
    mode: ClassVar[str]
    neutral: ClassVar[tuple[float, float]]

    def __init__(self, state_dim: int, action_dim: int) -> None:
        super().__init__()
        for name, size in (("state", state_dim), ("action", action_dim)):
            for kind, value in zip(self.kinds, self.neutral, strict=True):
                self.register_buffer(f"{name}_{kind}", torch.full((size,), value))

    @classmethod
    def mapping(cls) -> dict[str, str]:
        """Return LeRobot's ``normalization_mapping``."""
        return {"STATE": cls.mode, "ACTION": cls.mode, "VISUAL": "IDENTITY"}

    def standardise(self, name: str, values: Tensor, size: int) -> Tensor:
        """Return states or actions, float32 [..., S], normalised and padded by 0 to ``size``."""
        return F.pad(self.normalise(values, *self._of(name)), (0, size - values.shape[-1]))

    def actions(self, standard: Tensor) -> Tensor:
        """Return the actions, float32 [..., A], of normalised and padded ones [..., Amax]."""
        first, second = self._of("action")
        return self.restore(standard[..., : len(first)], first, second)

    def fit(self, name: str, values: Tensor) -> None:
        """Set the statistics of states or actions to those of samples, ``[n, S]``."""
        self._set(name, *self.of_samples(values))

    def load(self, statistics: NormalizationStatistics) -> None:
        """Set the statistics to those of a data set."""
        for name in ("state", "action"):
            first, second = (getattr(statistics, f"{name}_{kind}") for kind in self.kinds)
            self._set(name, first, second)

    @staticmethod
    @abstractmethod
    def normalise(values: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return values [..., S] normalised by statistics ``[S]``."""

    @staticmethod
    @abstractmethod
    def restore(normalised: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return the values of normalised ones."""

    @staticmethod
    @abstractmethod
    def of_samples(values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the statistics ``[S]`` of samples ``[n, S]``."""

    @staticmethod
    @abstractmethod
    def widened(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Return statistics for which a feature that hardly varies stays small."""

    def _set(self, name: str, first: Tensor, second: Tensor) -> None:
        for own, value in zip(self._of(name), self.widened(first, second), strict=True):
            own.copy_(value)

    def _of(self, name: str) -> tuple[Tensor, Tensor]:
        first, second = (self.get_buffer(f"{name}_{kind}") for kind in self.kinds)
        return first, second


class Moments(Statistics):
    """Mean and standard deviation: values are standardised."""

    kinds, mode, neutral = ("mean", "std"), "MEAN_STD", (0.0, 1.0)

    @staticmethod
    def normalise(values: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return standard values; see :meth:`Statistics.normalise`."""
        return (values - first) / (second + EPSILON)

    @staticmethod
    def restore(normalised: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return the values of standard ones; see :meth:`Statistics.restore`."""
        return normalised * second + first

    @staticmethod
    def of_samples(values: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and deviation; see :meth:`Statistics.of_samples`."""
        # A single sample has no deviation.
        return values.mean(0), values.std(0, correction=min(len(values) - 1, 1))

    @staticmethod
    def widened(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean, and the deviation of at least :data:`SMALLEST_DEVIATION`."""
        return first, second.clamp(min=SMALLEST_DEVIATION)


class Quantiles(Statistics):
    """The 1% and 99% quantiles: they become -1 and 1, and values outside of them lie outside [-1, 1]."""

    kinds, mode, neutral = ("q01", "q99"), "QUANTILES", (-1.0, 1.0)

    @staticmethod
    def normalise(values: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return scaled values; see :meth:`Statistics.normalise`."""
        return 2.0 * (values - first) / _span(first, second) - 1.0

    @staticmethod
    def restore(normalised: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return the values of scaled ones; see :meth:`Statistics.restore`."""
        return (normalised + 1.0) * _span(first, second) / 2.0 + first

    @staticmethod
    def of_samples(values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the quantiles, interpolated linearly; see :meth:`Statistics.of_samples`."""
        low, high = torch.quantile(values.double(), values.new_tensor([0.01, 0.99], dtype=torch.float64), dim=0)
        return low, high

    @staticmethod
    def widened(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Return the quantiles, moved apart to at least twice :data:`SMALLEST_DEVIATION`."""
        middle, half = (first + second) / 2, ((second - first) / 2).clamp(min=SMALLEST_DEVIATION)
        return middle - half, middle + half


def _span(low: Tensor, high: Tensor) -> Tensor:
    span = high - low
    return span.where(span != 0, EPSILON)

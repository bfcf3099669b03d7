"""The coefficient of the policy's entropy, which is adapted to a target (Haarnoja et al. 2018, arXiv:1812.05905)."""

import math

import torch
from torch import Tensor, nn

from embodyflow.algorithms.off_policy import temperature_loss
from embodyflow.config.robots.off_policy import TemperatureConfig


class Temperature(nn.Module):
    """The coefficient α of the entropy, by its logarithm.

    Args:
        config: Initial value and target.
        decision_dim: Numbers that one decision consists of; negated, they are the default of the target.
    """

    def __init__(self, config: TemperatureConfig, decision_dim: int) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(config.initial)))
        self._target = -float(decision_dim) if config.target_entropy is None else config.target_entropy

    @property
    def value(self) -> Tensor:
        """α, a scalar without gradient that later steps leave as it is."""
        return self.log.detach().exp()

    def loss(self, log_probs: Tensor) -> Tensor:
        """Return the loss of log α, a scalar, of log-densities of the policy's actions ``[B]``, without gradients."""
        return temperature_loss(self.log, log_probs, self._target)

"""Networks of the Gaussian policy with bounded means and of its critic of states.

They are initialised as torch initialises linear layers.
"""

import torch
from torch import Tensor, nn

from embodyflow.policies.control.mlp_bounded.configuration_mlp_bounded import MLPBoundedConfig
from embodyflow.policies.control.mlp_squashed.modeling_mlp_squashed import hidden_layers

LOG_STD_BOUNDS = (-5.0, 2.0)
"""Bounds of the logarithm of a deviation, as in the authors' implementation."""


class MLPBounded(nn.Module):
    """Maps states to means in [-1, 1]: layers of ReLU, then a linear layer and tanh.

    Deviations do not depend on states. The logarithm of each is a sigmoid between its bounds, which has a gradient
    everywhere, as in d3rlpy.
    """

    def __init__(self, config: MLPBoundedConfig) -> None:
        super().__init__()
        self.blocks = hidden_layers(config)
        self.mean = nn.Linear(config.hidden_size, config.action_dim)
        self.deviation = nn.Parameter(torch.zeros(config.action_dim))

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return means, float32 ``[..., A]``, of states ``[..., S]``, and log-deviations ``[A]``."""
        features = state
        for block in self.blocks:
            features = block(features)
        low, high = LOG_STD_BOUNDS
        return self.mean(features).tanh(), low + (high - low) * self.deviation.sigmoid()


class MLPStateValue(nn.Module):
    """Maps states to values, by an MLP of the policy's sizes."""

    def __init__(self, config: MLPBoundedConfig) -> None:
        super().__init__()
        self.blocks = hidden_layers(config)
        self.value = nn.Linear(config.hidden_size, 1)

    def forward(self, state: Tensor) -> Tensor:
        """Return values, float32 ``[B]``, of states ``[B, S]``."""
        features = state
        for block in self.blocks:
            features = block(features)
        values: Tensor = self.value(features).squeeze(-1)
        return values

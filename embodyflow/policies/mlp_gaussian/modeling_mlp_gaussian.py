"""Networks of policy and critic, initialised as usual for PPO.

See Huang et al., 2022, "The 37 Implementation Details of Proximal Policy Optimization".
"""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from embodyflow.policies.mlp_gaussian.configuration_mlp_gaussian import MLPGaussianConfig
from embodyflow.policies.running_normalizer import RunningNormalizer


class MLPGaussian(nn.Module):
    """Maps states to a Gaussian over actions: an MLP of tanh layers gives the mean, a parameter the deviation."""

    def __init__(self, config: MLPGaussianConfig) -> None:
        super().__init__()
        self.normalize = _normalizer(config)
        self.blocks = _hidden_layers(config)
        self.mean = _linear(config.hidden_size, config.action_dim, gain=0.01)
        self.log_std = nn.Parameter(torch.full((config.action_dim,), config.initial_log_std))

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return means ``[..., A]`` of states ``[..., S]``, and logarithms of the deviations ``[A]``, all float32."""
        state = self.normalize(state)
        for block in self.blocks:
            state = block(state)
        mean = self.mean(state)
        return mean, self.log_std.expand(mean.shape[-1])


class MLPValue(nn.Module):
    """Maps states to values, by an MLP of the policy's sizes."""

    def __init__(self, config: MLPGaussianConfig) -> None:
        super().__init__()
        self.normalize = _normalizer(config)
        self.blocks = _hidden_layers(config)
        self.value = _linear(config.hidden_size, 1, gain=1.0)

    def forward(self, state: Tensor) -> Tensor:
        """Return the values, float32 ``[...]``, of states float32 ``[..., S]``."""
        state = self.normalize(state)
        for block in self.blocks:
            state = block(state)
        values: Tensor = self.value(state).squeeze(-1)
        return values


def gaussian_log_prob(normals: Tensor, log_std: Tensor) -> Tensor:
    """Return the log-density of actions under independent Gaussians, ``[...]``.

    Args:
        normals: Distances of the actions from the mean, in deviations, ``[..., A]``.
        log_std: Logarithms of the deviations, ``[A]``.
    """
    return -0.5 * normals.square().sum(-1) - (log_std + 0.5 * math.log(2 * math.pi)).sum(-1)


def gaussian_entropy(log_std: Tensor) -> Tensor:
    """Return the differential entropy of independent Gaussians in nats, a scalar, by their log-deviations ``[A]``."""
    return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


def _normalizer(config: MLPGaussianConfig) -> nn.Module:
    """Return the normalizer of states, or the identity, which has no weights."""
    if not config.normalize_observations:
        return nn.Identity()
    return RunningNormalizer(config.state_dim, config.observation_clip)


def _hidden_layers(config: MLPGaussianConfig) -> nn.ModuleList:
    sizes = [config.state_dim] + [config.hidden_size] * config.num_layers
    return nn.ModuleList(nn.Sequential(_linear(a, b, gain=math.sqrt(2)), nn.Tanh()) for a, b in pairwise(sizes))


def _linear(num_inputs: int, num_outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(num_inputs, num_outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer

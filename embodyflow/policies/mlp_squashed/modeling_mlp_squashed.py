"""Networks of the squashed Gaussian policy and of its critics, initialised as torch initialises linear layers."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from embodyflow.policies.mlp_squashed.configuration_mlp_squashed import MLPSquashedConfig

LOG_STD_BOUNDS = (-20.0, 2.0)
"""Bounds of the logarithm of a deviation, as in the authors' implementation."""


class MLPSquashed(nn.Module):
    """Maps states to the Gaussian whose samples are squashed by tanh: layers of ReLU, then mean and log-deviation."""

    def __init__(self, config: MLPSquashedConfig) -> None:
        super().__init__()
        sizes = [config.state_dim] + [config.hidden_size] * config.num_layers
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes))
        self.mean = nn.Linear(config.hidden_size, config.action_dim)
        self.log_std = nn.Linear(config.hidden_size, config.action_dim)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and log-deviations, float32 ``[..., A]``, of states ``[..., S]``."""
        features = state
        for block in self.blocks:
            features = block(features)
        return self.mean(features), self.log_std(features).clamp(*LOG_STD_BOUNDS)


class MLPCritics(nn.Module):
    """K networks that map states and actions to values, computed together."""

    def __init__(self, config: MLPSquashedConfig) -> None:
        super().__init__()
        sizes = [config.state_dim + config.action_dim] + [config.hidden_size] * config.num_layers
        norm = config.critic_layer_norm
        self.blocks = nn.ModuleList(_hidden_layer(config.num_critics, a, b, norm=norm) for a, b in pairwise(sizes))
        self.value = LinearEnsemble(config.num_critics, config.hidden_size, 1)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """Return values, float32 ``[K, B]``, of states ``[B, S]`` and actions ``[B, A]``."""
        features = torch.cat([state, action], -1).expand(len(self.value.bias), -1, -1)
        for block in self.blocks:
            features = block(features)
        values: Tensor = self.value(features).squeeze(-1)
        return values


class LinearEnsemble(nn.Module):
    """K linear layers of the same sizes; each maps its own inputs."""

    def __init__(self, num_members: int, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(num_inputs)
        self.weight = nn.Parameter(torch.empty(num_members, num_inputs, num_outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_members, 1, num_outputs).uniform_(-bound, bound))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map inputs ``[K, B, num_inputs]`` to ``[K, B, num_outputs]``."""
        return torch.baddbmm(self.bias, inputs, self.weight)


class LayerNormEnsemble(nn.Module):
    """K layer normalisations (Ba et al. 2016, arXiv:1607.06450), each with its own scale and shift."""

    def __init__(self, num_members: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_members, 1, size))
        self.bias = nn.Parameter(torch.zeros(num_members, 1, size))

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise the last axis of ``[K, B, size]``."""
        return functional.layer_norm(inputs, inputs.shape[-1:]) * self.weight + self.bias


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions tanh(mean + std · noise), ``[..., A]``, and their log-densities, ``[...]``.

    See Haarnoja et al. 2018, arXiv:1812.05905, appendix C.

    Args:
        mean: Means of the Gaussian, ``[..., A]``.
        log_std: Logarithms of its deviations, ``[..., A]``.
        noise: Standard normals, ``[..., A]``.
    """
    samples = mean + log_std.exp() * noise
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    # The logarithm of 1 - tanh(x)², which does not underflow for large x.
    slope = 2 * (math.log(2) - samples - functional.softplus(-2 * samples))
    return samples.tanh(), (gaussian - slope).sum(-1)


def _hidden_layer(num_members: int, num_inputs: int, num_outputs: int, *, norm: bool) -> nn.Module:
    layers: list[nn.Module] = [LinearEnsemble(num_members, num_inputs, num_outputs)]
    layers += [LayerNormEnsemble(num_members, num_outputs)] if norm else []
    return nn.Sequential(*layers, nn.ReLU())

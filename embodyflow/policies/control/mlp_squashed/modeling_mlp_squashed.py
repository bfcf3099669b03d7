"""Networks of the squashed Gaussian policy and of its critics, initialised as torch initialises linear layers."""

import math
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

LOG_STD_BOUNDS = (-20.0, 2.0)
"""Bounds of the logarithm of a deviation, as in the authors' implementation."""


class Sizes(Protocol):
    """Configuration with the sizes of policy and critics."""

    state_dim: int
    hidden_size: int
    num_layers: int

    @property
    def decision_dim(self) -> int:
        """Numbers that one decision consists of."""


class CriticSizes(Sizes, Protocol):
    """Configuration with the sizes of an ensemble of critics."""

    num_critics: int
    critic_layer_norm: bool


class MLPSquashed(nn.Module):
    """Maps states to the Gaussian whose samples are squashed by tanh: layers of ReLU, then mean and log-deviation."""

    def __init__(self, config: Sizes) -> None:
        super().__init__()
        self.blocks = hidden_layers(config)
        self.mean = nn.Linear(config.hidden_size, config.decision_dim)
        self.log_std = nn.Linear(config.hidden_size, config.decision_dim)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and log-deviations, float32 ``[..., A]``, of states ``[..., S]``."""
        features = state
        for block in self.blocks:
            features = block(features)
        return self.mean(features), self.log_std(features).clamp(*LOG_STD_BOUNDS)


class MLPCritics(nn.Module):
    """K networks that map states and actions to values, computed together."""

    def __init__(self, config: CriticSizes) -> None:
        super().__init__()
        sizes = [config.state_dim + config.decision_dim] + [config.hidden_size] * config.num_layers
        norm = config.critic_layer_norm
        self.blocks = nn.ModuleList(HiddenEnsemble(config.num_critics, a, b, norm=norm) for a, b in pairwise(sizes))
        self.value = LinearEnsemble(config.num_critics, config.hidden_size, 1)

    def forward(self, state: Tensor, action: Tensor, members: Tensor | None = None) -> Tensor:
        """Return values, float32 ``[K, B]``, of states ``[B, S]`` and actions ``[B, A]``.

        Args:
            state: States.
            action: Actions.
            members: Indices of the networks to compute, int64 ``[K]``; ``None`` computes all.
        """
        num_members = len(self.value.bias) if members is None else len(members)
        features = torch.cat([state, action], -1).expand(num_members, -1, -1)
        for block in self.blocks:
            features = block(features, members)
        # One product of numbers per feature: a matrix with one column is slow to multiply by.
        weight, bias = (_chosen(each, members) for each in (self.value.weight, self.value.bias))
        return (features * weight.transpose(1, 2)).sum(-1) + bias.squeeze(-1)


class LinearEnsemble(nn.Module):
    """K linear layers of the same sizes; each maps its own inputs."""

    def __init__(self, num_members: int, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(num_inputs)
        self.weight = nn.Parameter(torch.empty(num_members, num_inputs, num_outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_members, 1, num_outputs).uniform_(-bound, bound))

    def forward(self, inputs: Tensor, members: Tensor | None = None) -> Tensor:
        """Map inputs ``[K, B, num_inputs]`` to ``[K, B, num_outputs]``, by all layers or by those of ``members``."""
        return torch.baddbmm(_chosen(self.bias, members), inputs, _chosen(self.weight, members))


class LayerNormEnsemble(nn.Module):
    """K layer normalisations (Ba et al. 2016, arXiv:1607.06450), each with its own scale and shift."""

    def __init__(self, num_members: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_members, 1, size))
        self.bias = nn.Parameter(torch.zeros(num_members, 1, size))

    def forward(self, inputs: Tensor, members: Tensor | None = None) -> Tensor:
        """Normalise the last axis of ``[K, B, size]``, by all layers or by those of ``members``."""
        scale, shift = _chosen(self.weight, members), _chosen(self.bias, members)
        return functional.layer_norm(inputs, inputs.shape[-1:]) * scale + shift


class HiddenEnsemble(nn.Sequential):
    """K hidden layers: a linear layer, a layer normalisation if ``norm`` asks for it, and ReLU."""

    def __init__(self, num_members: int, num_inputs: int, num_outputs: int, *, norm: bool) -> None:
        layers: list[nn.Module] = [LinearEnsemble(num_members, num_inputs, num_outputs)]
        layers += [LayerNormEnsemble(num_members, num_outputs)] if norm else []
        super().__init__(*layers, nn.ReLU())

    def forward(self, inputs: Tensor, members: Tensor | None = None) -> Tensor:
        """Map inputs ``[K, B, num_inputs]`` to ``[K, B, num_outputs]``, by all layers or by those of ``members``."""
        *ensembles, activation = self
        for each in ensembles:
            inputs = each(inputs, members)
        features: Tensor = activation(inputs)
        return features


def hidden_layers(config: Sizes) -> nn.ModuleList:
    """Return the layers of ReLU that map states to hidden features."""
    sizes = [config.state_dim] + [config.hidden_size] * config.num_layers
    return nn.ModuleList(nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes))


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions tanh(mean + std · noise) and the log-density of each of their numbers, both ``[..., A]``.

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
    return samples.tanh(), gaussian - slope


def _chosen(parameter: Tensor, members: Tensor | None) -> Tensor:
    return parameter if members is None else parameter[members]

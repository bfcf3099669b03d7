"""Layers of policies and critics, initialised as usual for PPO.

See Huang et al., 2022, "The 37 Implementation Details of Proximal Policy Optimization".
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import cast

from torch import Tensor, nn
from torch.nn import functional

from embodyflow.policies.control.mlp.configuration_mlp import MLPConfig
from embodyflow.policies.running_statistics.return_scale import ReturnScale
from embodyflow.policies.running_statistics.running_normalizer import RunningNormalizer


class MLPTrunk(nn.Module):
    """Maps states to hidden features: a normaliser, if the configuration has one, and layers of tanh."""

    def __init__(self, config: MLPConfig) -> None:
        super().__init__()
        self.normalize = _normalizer(config)
        self.blocks = _hidden_layers(config)

    def features(self, state: Tensor) -> Tensor:
        """Return hidden features, float32 ``[..., hidden_size]``, of states float32 ``[..., S]``."""
        features: Tensor = self.normalize(state)
        for block in self.blocks:
            features = block(features)
        return features

    def frozen_features(self) -> Callable[[Tensor], Tensor]:
        """Return a function that equals :meth:`features` bit by bit, for a model that FSDP does not shard.

        It records no gradients and calls no hidden layer as a module, which costs more than its product of a few rows.
        """
        linears = [cast(nn.Linear, cast(nn.Sequential, block)[0]) for block in self.blocks]
        layers = [(linear.weight.detach(), linear.bias.detach()) for linear in linears]
        normalize = None if isinstance(self.normalize, nn.Identity) else self.normalize

        def features(state: Tensor) -> Tensor:
            values = state if normalize is None else normalize(state)
            for weight, bias in layers:
                values = functional.linear(values, weight, bias).tanh_()
            return values

        return features


class MLPActor(MLPTrunk):
    """Base of the networks that choose actions; it holds the scale of rewards, if the configuration has one."""

    def __init__(self, config: MLPConfig) -> None:
        super().__init__(config)
        self.return_scale = ReturnScale(config.reward_clip) if config.normalize_returns else None


class MLPValue(MLPTrunk):
    """Maps states to values, by an MLP of the policy's sizes."""

    def __init__(self, config: MLPConfig) -> None:
        super().__init__(config)
        self.value = orthogonal_linear(config.hidden_size, 1, gain=1.0)

    def forward(self, state: Tensor) -> Tensor:
        """Return the values, float32 ``[...]``, of states float32 ``[..., S]``."""
        values: Tensor = self.value(self.features(state)).squeeze(-1)
        return values


def orthogonal_linear(num_inputs: int, num_outputs: int, gain: float) -> nn.Linear:
    """Return a linear layer with orthogonal weights of that gain and a bias of zero."""
    layer = nn.Linear(num_inputs, num_outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def _normalizer(config: MLPConfig) -> nn.Module:
    """Return the normalizer of states, or the identity, which has no weights."""
    if not config.normalize_observations:
        return nn.Identity()
    return RunningNormalizer(config.state_dim, config.observation_clip)


def _hidden_layers(config: MLPConfig) -> nn.ModuleList:
    sizes = [config.state_dim] + [config.hidden_size] * config.num_layers
    layers = (nn.Sequential(orthogonal_linear(a, b, gain=math.sqrt(2)), nn.Tanh()) for a, b in pairwise(sizes))
    return nn.ModuleList(layers)

"""Network and density of the Gaussian policy."""

import math

import torch
from torch import Tensor, nn

from embodyflow.policies.control.mlp.modeling_mlp import MLPActor, orthogonal_linear
from embodyflow.policies.control.mlp_gaussian.configuration_mlp_gaussian import MLPGaussianConfig


class MLPGaussian(MLPActor):
    """Maps states to a Gaussian over actions: an MLP of tanh layers gives the mean, a parameter the deviation."""

    def __init__(self, config: MLPGaussianConfig) -> None:
        super().__init__(config)
        self.mean = orthogonal_linear(config.hidden_size, config.action_dim, gain=0.01)
        self.log_std = nn.Parameter(torch.full((config.action_dim,), config.initial_log_std))

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return means ``[..., A]`` of states ``[..., S]``, and logarithms of the deviations ``[A]``, all float32."""
        mean = self.mean(self.features(state))
        return mean, self.log_std.expand(mean.shape[-1])


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

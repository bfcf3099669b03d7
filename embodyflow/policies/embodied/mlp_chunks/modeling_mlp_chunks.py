"""Networks of the policy of chunks and of its critics, which standardise states by those of the demonstrations."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from embodyflow.policies.control.mlp_squashed.modeling_mlp_squashed import CriticSizes, MLPCritics, MLPSquashed, squash
from embodyflow.policies.embodied.mlp_chunks.configuration_mlp_chunks import MLPChunksConfig

LARGEST_FEATURE = 5.0
"""Bound of a standardised feature: one that hardly varied in the demonstrations must not explode when it varies."""

LANES = 64
"""Multiple of the numbers that a processor computes at once."""


class Standardization(nn.Module):
    """Centres and scales states by the mean and deviation of demonstrated ones.

    Args:
        size: S, features of a state.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("deviation", torch.ones(size))

    @torch.no_grad()
    def set_statistics(self, states: Tensor) -> None:
        """Take the mean and the deviation, at least 0.01, of states ``[n, S]``."""
        self.load(states.mean(0), states.std(0, correction=min(len(states) - 1, 1)))

    @torch.no_grad()
    def load(self, mean: Tensor, deviation: Tensor) -> None:
        """Take a mean and a deviation of states, both ``[S]``; the deviation is at least 0.01."""
        self.mean.copy_(mean)
        self.deviation.copy_(deviation.clamp(min=1e-2))

    def forward(self, state: Tensor) -> Tensor:
        """Return states ``[..., S]`` in deviations from the mean, within the bound."""
        return ((state - self.mean) / self.deviation).clamp(-LARGEST_FEATURE, LARGEST_FEATURE)


class MLPChunks(MLPSquashed):
    """Maps states to the Gaussian over C·A numbers whose samples are squashed by tanh."""

    def __init__(self, config: MLPChunksConfig) -> None:
        super().__init__(config)
        self.standardize = Standardization(config.state_dim)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and log-deviations, float32 ``[..., C·A]``, of states ``[..., S]``."""
        return super().forward(self.standardize(state))


class ChunkCritics(MLPCritics):
    """K networks that map states and chunks of actions to values."""

    def __init__(self, config: CriticSizes) -> None:
        super().__init__(config)
        self.standardize = Standardization(config.state_dim)

    def forward(self, state: Tensor, action: Tensor, members: Tensor | None = None) -> Tensor:
        """Return values, float32 ``[K, B]``, of states ``[B, S]`` and decisions ``[B, C·A]``."""
        return super().forward(self.standardize(state), action, members)

    def start_from(self, policy_state: Mapping[str, Any]) -> None:
        """Take over the policy's statistics of states."""
        own = self.standardize.state_dict()
        self.standardize.load_state_dict({name: policy_state[f"standardize.{name}"] for name in own})


def tanh_in_lanes(values: Tensor) -> Tensor:
    """Return the hyperbolic tangents of values ``[n, F]``; see :func:`squash_in_lanes`."""
    width = values.shape[-1]
    return functional.pad(values, (0, -width % LANES)).tanh()[..., :width]


def squash_in_lanes(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions and log-densities as ``squash``, with the same bits for a row whichever rows are beside it.

    Torch computes the last few numbers of a tensor otherwise than those before, so rows are padded to whole lanes.

    Args:
        mean: Means of the Gaussian, ``[n, C·A]``.
        log_std: Logarithms of its deviations, ``[n, C·A]``.
        noise: Standard normals, ``[n, C·A]``.
    """
    width = mean.shape[-1]
    padded = (functional.pad(each, (0, -width % LANES)) for each in (mean, log_std, noise))
    numbers, log_probs = squash(*padded)
    return numbers[..., :width].contiguous(), log_probs[..., :width].contiguous()

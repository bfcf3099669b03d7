"""The frozen model with the network that chooses its noise, and the critics of states and noise."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from embodyflow.policies.control.mlp_squashed.modeling_mlp_squashed import MLPSquashed
from embodyflow.policies.embodied.flow_vla.modeling_flow_vla import FlowVLA
from embodyflow.policies.embodied.mlp_chunks.modeling_mlp_chunks import LARGEST_FEATURE, ChunkCritics
from embodyflow.policies.embodied.steered.configuration_steered import SteeredConfig

FROZEN = "base."
"""Prefix of the names of the frozen weights."""


class SteeredFlow(nn.Module):
    """A model that denoises, and the Gaussian over its noise, whose samples are squashed by tanh.

    The mean of the noise is 0 in every state at first. So the greedy decisions are at first those of the model alone.

    Args:
        base: Model to steer. Its weights are frozen but for a warm start.
        config: Sizes of the network that steers it.
    """

    def __init__(self, base: FlowVLA, config: SteeredConfig) -> None:
        super().__init__()
        self.base, self.actor = base, MLPSquashed(config)
        nn.init.zeros_(self.actor.mean.weight)
        nn.init.zeros_(self.actor.mean.bias)
        self._imitating = frozenset(name for name, value in base.named_parameters() if value.requires_grad)
        self.set_imitating(False)

    @property
    def blocks(self) -> list[nn.Module]:
        """Transformer blocks of the frozen model."""
        return self.base.blocks

    def set_imitating(self, imitating: bool) -> None:
        """Make the weights of the frozen model trainable that imitation trains, or freeze all of them."""
        for name, value in self.base.named_parameters():
            value.requires_grad_(imitating and name in self._imitating)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and log-deviations of the noise before squashing, float32 ``[..., R]``, of states ``[..., S]``.

        States are standardised by the statistics of the frozen model.
        """
        standard = self.base.statistics.standardise("state", state, state.shape[-1])
        steering: tuple[Tensor, Tensor] = self.actor(standard.clamp(-LARGEST_FEATURE, LARGEST_FEATURE))
        return steering


class NoiseCritics(ChunkCritics):
    """K networks that map states and noise to values."""

    def start_from(self, policy_state: Mapping[str, Any]) -> None:
        """Take over the frozen model's statistics of states."""
        statistics = (policy_state[f"{FROZEN}statistics.state_{kind}"] for kind in ("mean", "std"))
        self.standardize.load(*statistics)

"""Networks of the diffusion policy and of its critic.

The denoiser is an MLP over the state, a noisy chunk and its noise level, as that of DPPO (Ren et al., 2024,
arXiv:2409.00588) for states.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from embodyflow.policies.control.mlp_squashed.modeling_mlp_squashed import hidden_layers
from embodyflow.policies.embodied.diffusion.configuration_diffusion import DiffusionConfig
from embodyflow.policies.embodied.mlp_chunks.modeling_mlp_chunks import Standardization
from embodyflow.policies.embodied.tiny_vla.modeling_tiny_vla import Block

LEVEL_FEATURES = 32
"""Sines and cosines that a noise level is embedded in."""


class ActionStandardization(Standardization):
    """Centres and scales actions by the mean and deviation of demonstrated ones, without a bound."""

    def forward(self, actions: Tensor) -> Tensor:
        """Return actions ``[..., A]`` in deviations from the mean."""
        return (actions - self.mean) / self.deviation

    def actions(self, standard: Tensor) -> Tensor:
        """Return the actions ``[..., A]`` that :meth:`forward` standardises to these numbers."""
        return standard * self.deviation + self.mean


class Denoiser(nn.Module):
    """Maps states, noisy chunks and their noise levels to velocities."""

    def __init__(self, config: DiffusionConfig) -> None:
        super().__init__()
        size, chunk = config.hidden_size, config.decision_dim
        self.enter = nn.Linear(config.state_dim + chunk + LEVEL_FEATURES, size)
        self.blocks = nn.ModuleList(Block(size) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(size)
        self.leave = nn.Linear(size, chunk)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return velocities, float32 ``[..., C·A]``.

        Args:
            inputs: Standardised states, noisy chunks and embedded levels, float32 ``[..., S + C·A + LEVEL_FEATURES]``.
        """
        hidden = self.enter(inputs.to(self.enter.weight.dtype))
        for block in self.blocks:
            hidden = block(hidden)
        velocities: Tensor = self.leave(self.norm(hidden))
        return velocities.float()


class Diffusion(nn.Module):
    """The denoisers, and the statistics that standardise states and actions.

    RL trains the last K' of K denoising steps. The steps before them have a denoiser of their own, which learns from
    demonstrations alone: were the weights shared, RL would change the distribution of the first steps, which its ratio
    leaves out. DPPO has two networks as well, and copies the imitating one to begin with. Here each learns the noise
    levels of its steps, so the warm start needs no moment at which to copy.

    Args:
        config: Sizes.
        first_late_level: Level at which the first trained step begins.
    """

    level_features: Tensor

    def __init__(self, config: DiffusionConfig, first_late_level: int) -> None:
        super().__init__()
        self.standardize = Standardization(config.state_dim)
        self.scale = ActionStandardization(config.action_dim)
        self.late = Denoiser(config)
        self.early = Denoiser(config) if config.num_trained_steps < config.num_steps else None
        self._first_late_level = first_late_level
        self.register_buffer("level_features", embedded_levels(config.num_noise_levels), persistent=False)

    @property
    def blocks(self) -> list[nn.Module]:
        """The layers of both denoisers."""
        denoisers = [self.late] if self.early is None else [self.late, self.early]
        return [block for denoiser in denoisers for block in denoiser.blocks]

    def forward(self, state: Tensor, points: Tensor, levels: Tensor, *, all_late: bool = False) -> Tensor:
        """Return the velocities of k noisy chunks per row, float32 ``[n, k, C, A]``.

        Args:
            state: States, float32 ``[n, S]``.
            points: Noisy chunks, float32 ``[n, k, C, A]``.
            levels: Their noise levels, int64 ``[n, k]``.
            all_late: All levels are those of trained steps. The early denoiser then takes no part and has no gradient,
                so neither an optimizer step nor its weight decay changes it.
        """
        inputs = self._inputs(state[:, None].expand(-1, levels.shape[1], -1), points, levels)
        velocities: Tensor = self.late(inputs)
        if self.early is not None and not all_late:
            # Both compute all rows, since the passes of a sharded model are collectives.
            is_early = (levels > self._first_late_level)[..., None]
            velocities = torch.where(is_early, self.early(inputs), velocities)
        return velocities.view_as(points)

    def velocity(self, state: Tensor, points: Tensor, level: int) -> Tensor:
        """Return the velocities of noisy chunks ``[n, C, A]`` of one level; a pass of its denoiser alone."""
        levels = torch.full(points.shape[:1], level, device=points.device)
        denoiser = self.late if self.early is None or level <= self._first_late_level else self.early
        velocities: Tensor = denoiser(self._inputs(state, points, levels))
        return velocities.view_as(points)

    def _inputs(self, state: Tensor, points: Tensor, levels: Tensor) -> Tensor:
        """Return the inputs of a denoiser for states ``[..., S]``, chunks ``[..., C, A]`` and levels ``[...]``."""
        return torch.cat([self.standardize(state), points.flatten(-2), self.level_features[levels]], dim=-1)


class DiffusionValue(nn.Module):
    """Maps states to values, which are 0 before any training."""

    def __init__(self, config: DiffusionConfig) -> None:
        super().__init__()
        self.standardize = Standardization(config.state_dim)
        self.blocks = hidden_layers(config)
        self.value = nn.Linear(config.hidden_size, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(self, state: Tensor) -> Tensor:
        """Return the values, float32 ``[n]``, of states ``[n, S]``."""
        features = self.standardize(state)
        for block in self.blocks:
            features = block(features)
        values: Tensor = self.value(features).squeeze(-1)
        return values.float()

    def start_from(self, policy_state: Mapping[str, Any]) -> None:
        """Take over the policy's statistics of states."""
        own = self.standardize.state_dict()
        self.standardize.load_state_dict({name: policy_state[f"standardize.{name}"] for name in own})


def embedded_levels(num_levels: int) -> Tensor:
    """Return sines and cosines of the levels 0 to N, float32 ``[N + 1, LEVEL_FEATURES]``.

    The frequencies are those of Vaswani et al., 2017, arXiv:1706.03762, section 3.5. A table gives a level the same
    bits in every batch.
    """
    half = LEVEL_FEATURES // 2
    frequencies = torch.exp(-math.log(10_000.0) / half * torch.arange(half, dtype=torch.float64))
    angles = torch.arange(num_levels + 1, dtype=torch.float64)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()

"""Critic of the diffusion policy, as :class:`~embodyflow.policies.base.Critic`."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from embodyflow.policies.decisions import at_decisions, decisions
from embodyflow.policies.embodied.diffusion.configuration_diffusion import DiffusionConfig
from embodyflow.policies.embodied.diffusion.modeling_diffusion import DiffusionValue


class DiffusionCritic:
    """Values states with a network of its own; a denoising step has the value of its decision.

    Args:
        config: Configuration of the policy, for its sizes.
        device: Device of the model.
    """

    def __init__(self, config: DiffusionConfig, device: str) -> None:
        self._value = DiffusionValue(config).to(device)
        self.model: torch.nn.Module = self._value
        self._device = device

    @property
    def blocks(self) -> Sequence[torch.nn.Module]:
        """The network's layers."""
        return list(self._value.blocks)

    def evaluate(self, batch: TensorDict) -> torch.Tensor:
        """Return the value before each decision, float32 ``[N, T]``; zero without a decision."""
        decided, seen = decisions(batch, ["state"], self._device)
        return at_decisions(self.model(seen["state"]), decided, decided)

    def start_from(self, policy_state: Mapping[str, Any]) -> None:
        """Take over the policy's statistics of states."""
        self._value.start_from(policy_state)

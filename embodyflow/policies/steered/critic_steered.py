"""Critics of states and noise, as :class:`~embodyflow.policies.base.ActionCritics`."""

from collections.abc import Mapping
from typing import Any

import torch

from embodyflow.policies.steered.configuration_steered import SteeredConfig
from embodyflow.policies.steered.modeling_steered import NoiseCritics


class SteeredCritic:
    """Values noise with ``num_critics`` networks.

    Args:
        config: Configuration of the policy, for its sizes.
        device: Device of the model.
    """

    def __init__(self, config: SteeredConfig, device: str) -> None:
        self._critics = NoiseCritics(config).to(device)
        self.model: torch.nn.Module = self._critics
        self.num_members, self._device = config.num_critics, device

    def evaluate_actions(
        self, state: torch.Tensor, action: torch.Tensor, members: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the value of each noise, in parts of its bound, by each critic.

        See :class:`~embodyflow.policies.base.ActionCritics`.
        """
        values: torch.Tensor = self.model(state.to(self._device), action.to(self._device), members)
        return values

    def start_from(self, policy_state: Mapping[str, Any]) -> None:
        """Take over the frozen model's statistics of states."""
        self._critics.start_from(policy_state)

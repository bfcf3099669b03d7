"""Critics of the squashed Gaussian policy, as :class:`~embodyflow.policies.base.ActionCritics`."""

from collections.abc import Mapping
from typing import Any

import torch

from embodyflow.policies.control.mlp_squashed.modeling_mlp_squashed import CriticSizes, MLPCritics


class MLPSquashedCritic:
    """Values actions with ``num_critics`` networks.

    Args:
        config: Configuration of the policy, for its sizes.
        device: Device of the model.
    """

    def __init__(self, config: CriticSizes, device: str) -> None:
        self.model: torch.nn.Module = MLPCritics(config).to(device)
        self.num_members, self._device = config.num_critics, device

    def evaluate_actions(
        self, state: torch.Tensor, action: torch.Tensor, members: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the value of each action by each critic; see :class:`~embodyflow.policies.base.ActionCritics`."""
        values: torch.Tensor = self.model(state.to(self._device), action.to(self._device), members)
        return values

    def start_from(self, policy_state: Mapping[str, Any]) -> None:
        """Do nothing: critics and policy share nothing."""

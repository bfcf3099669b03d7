"""Critics with batch renormalisation, as :class:`~embodyflow.policies.base.ActionCritics`."""

from collections.abc import Mapping
from typing import Any

import torch

from embodyflow.policies.control.mlp_renorm.configuration_mlp_renorm import MLPRenormConfig
from embodyflow.policies.control.mlp_renorm.modeling_mlp_renorm import RenormCritics


class MLPRenormCritic:
    """Values actions with ``num_critics`` networks, which are in evaluation mode.

    Args:
        config: Configuration of the policy, for the sizes.
        device: Device of the model.
    """

    def __init__(self, config: MLPRenormConfig, device: str) -> None:
        self.model: torch.nn.Module = RenormCritics(config).eval().to(device)
        self.num_members, self._device = config.num_critics, device

    def evaluate_actions(
        self, state: torch.Tensor, action: torch.Tensor, members: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the value of each action by each critic; see :class:`~embodyflow.policies.base.ActionCritics`.

        All critics are computed whichever count, because a step of the running statistics is one of all of them.
        """
        values: torch.Tensor = self.model(state.to(self._device), action.to(self._device))
        return values if members is None else values[members]

    def start_from(self, policy_state: Mapping[str, Any]) -> None:
        """Do nothing: critics and policy share nothing."""

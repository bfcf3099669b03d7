"""Critics of the squashed Gaussian policy, as :class:`~embodyflow.policies.base.ActionCritics`."""

import torch

from embodyflow.policies.mlp_squashed.configuration_mlp_squashed import MLPSquashedConfig
from embodyflow.policies.mlp_squashed.modeling_mlp_squashed import MLPCritics


class MLPSquashedCritic:
    """Values actions with ``num_critics`` networks.

    Args:
        config: Configuration of the policy, for its sizes.
        device: Device of the model.
    """

    def __init__(self, config: MLPSquashedConfig, device: str) -> None:
        self.model: torch.nn.Module = MLPCritics(config).to(device)
        self._device = device

    def evaluate_actions(self, state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Return the value of each action by each critic, float32 ``[K, B]``."""
        values: torch.Tensor = self.model(state.to(self._device), action.to(self._device))
        return values

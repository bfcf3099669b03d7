"""Critics of the Gaussian policy with bounded means, as :class:`~embodyflow.policies.base.ActionAndStateCritics`."""

import torch

from embodyflow.policies.control.mlp_bounded.configuration_mlp_bounded import MLPBoundedConfig
from embodyflow.policies.control.mlp_bounded.modeling_mlp_bounded import MLPStateValue
from embodyflow.policies.control.mlp_squashed.critic_mlp_squashed import MLPSquashedCritic


class MLPBoundedCritic(MLPSquashedCritic):
    """Values actions with ``num_critics`` networks, and states with one.

    Args:
        config: Configuration of the policy, for its sizes.
        device: Device of the models.
    """

    def __init__(self, config: MLPBoundedConfig, device: str) -> None:
        super().__init__(config, device)
        self.state_model: torch.nn.Module = MLPStateValue(config).to(device)

    def evaluate_states(self, state: torch.Tensor) -> torch.Tensor:
        """Return the values of states; see :class:`~embodyflow.policies.base.ActionAndStateCritics`."""
        values: torch.Tensor = self.state_model(state.to(self._device))
        return values

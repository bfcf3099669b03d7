"""Network of the deterministic policy, initialised as torch initialises linear layers."""

from torch import Tensor, nn

from embodyflow.policies.control.mlp_deterministic.configuration_mlp_deterministic import MLPDeterministicConfig
from embodyflow.policies.control.mlp_squashed.modeling_mlp_squashed import hidden_layers


class MLPDeterministic(nn.Module):
    """Maps states to actions in [-1, 1]: layers of ReLU, then a linear layer and tanh."""

    def __init__(self, config: MLPDeterministicConfig) -> None:
        super().__init__()
        self.blocks = hidden_layers(config)
        self.action = nn.Linear(config.hidden_size, config.action_dim)

    def forward(self, state: Tensor) -> Tensor:
        """Return actions, float32 ``[..., A]``, for states ``[..., S]``."""
        features = state
        for block in self.blocks:
            features = block(features)
        actions: Tensor = self.action(features).tanh()
        return actions

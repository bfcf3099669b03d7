"""Network of the deterministic policy, initialised as torch initialises linear layers."""

from itertools import pairwise

from torch import Tensor, nn

from embodyflow.policies.mlp_deterministic.configuration_mlp_deterministic import MLPDeterministicConfig


class MLPDeterministic(nn.Module):
    """Maps states to actions in [-1, 1]: layers of ReLU, then a linear layer and tanh."""

    def __init__(self, config: MLPDeterministicConfig) -> None:
        super().__init__()
        sizes = [config.state_dim] + [config.hidden_size] * config.num_layers
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes))
        self.action = nn.Linear(config.hidden_size, config.action_dim)

    def forward(self, state: Tensor) -> Tensor:
        """Return actions, float32 ``[..., A]``, for states ``[..., S]``."""
        features = state
        for block in self.blocks:
            features = block(features)
        actions: Tensor = self.action(features).tanh()
        return actions

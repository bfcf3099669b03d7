"""Network of the categorical policy."""

from torch import Tensor

from embodyflow.policies.control.mlp.modeling_mlp import MLPActor, orthogonal_linear
from embodyflow.policies.control.mlp_categorical.configuration_mlp_categorical import MLPCategoricalConfig


class MLPCategorical(MLPActor):
    """Maps states to logits of actions, by an MLP of tanh layers; at the start all actions are about equally likely."""

    def __init__(self, config: MLPCategoricalConfig) -> None:
        super().__init__(config)
        self.logits = orthogonal_linear(config.hidden_size, config.num_actions, gain=0.01)

    def forward(self, state: Tensor) -> Tensor:
        """Return the logits, float32 ``[..., K]``, of states float32 ``[..., S]``."""
        logits: Tensor = self.logits(self.features(state))
        return logits

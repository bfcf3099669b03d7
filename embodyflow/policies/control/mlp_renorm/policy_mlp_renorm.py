"""The policy with batch renormalisation as an :class:`~embodyflow.policies.base.OffPolicy`."""

from embodyflow.policies.control.mlp_renorm.configuration_mlp_renorm import MLPRenormConfig
from embodyflow.policies.control.mlp_renorm.modeling_mlp_renorm import MLPRenorm
from embodyflow.policies.control.mlp_squashed.policy_mlp_squashed import SingleActionPolicy


class MLPRenormPolicy(SingleActionPolicy):
    """Samples one action in [-1, 1] per decision; ``action_tokens`` records it, float32 ``[..., A]``.

    The model is in evaluation mode, so a decision depends on its own state alone;
    :func:`~embodyflow.policies.control.mlp_renorm.batch_renorm.batch_statistics` is the exception.

    Args:
        config: Sizes, and settings of the renormalisation.
        device: Device of the model.
    """

    def __init__(self, config: MLPRenormConfig, device: str) -> None:
        super().__init__(config, MLPRenorm(config).eval(), device)

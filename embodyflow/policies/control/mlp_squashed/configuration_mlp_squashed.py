"""Configuration of the squashed Gaussian policy and its critics."""

from typing import ClassVar, Literal

from pydantic import Field

from embodyflow.policies.policy_config import ControlPolicyConfig


class MLPWithActionCriticsConfig(ControlPolicyConfig):
    """Base of the configurations of policies whose critics of states and actions have the policy's sizes."""

    state_dim: int = Field(ge=1, le=4096, description="S, features of the state.")
    action_dim: int = Field(ge=1, le=64, description="A, dimensions of one action.")
    hidden_size: int = Field(256, ge=1, le=4096, description="Features of a hidden layer.")
    num_layers: int = Field(2, ge=1, le=32, description="Hidden layers.")
    num_critics: int = Field(2, ge=1, le=64, description="Critics; the least of their values counts.")
    critic_layer_norm: bool = Field(False, description="Normalise the features of each of the critics' hidden layers.")


class MLPSquashedConfig(MLPWithActionCriticsConfig):
    """Configuration of :class:`~embodyflow.policies.control.mlp_squashed.modeling_mlp_squashed.MLPSquashed`."""

    off_policy: ClassVar[str | None] = "sac"
    compiles: ClassVar[bool] = True
    entropy_is_density: ClassVar[bool] = True

    name: Literal["mlp_squashed"] = "mlp_squashed"

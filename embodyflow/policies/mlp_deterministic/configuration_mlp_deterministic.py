"""Configuration of the deterministic policy and its critics."""

from typing import ClassVar, Literal

from pydantic import Field

from embodyflow.policies.policy_config import ControlPolicyConfig


class MLPDeterministicConfig(ControlPolicyConfig):
    """Configuration of :class:`~embodyflow.policies.mlp_deterministic.modeling_mlp_deterministic.MLPDeterministic`."""

    off_policy: ClassVar[str | None] = "td3"
    entropy_varies: ClassVar[bool] = False

    name: Literal["mlp_deterministic"] = "mlp_deterministic"
    state_dim: int = Field(ge=1, le=4096, description="S, features of the state.")
    action_dim: int = Field(ge=1, le=64, description="A, dimensions of one action.")
    hidden_size: int = Field(256, ge=1, le=4096, description="Features of a hidden layer.")
    num_layers: int = Field(2, ge=1, le=32, description="Hidden layers.")
    exploration_noise: float = Field(0.1, gt=0, le=10, description="Deviation of the noise added to sampled actions.")
    num_critics: int = Field(2, ge=1, le=64, description="Critics; the least of their values counts.")
    critic_layer_norm: bool = Field(False, description="Normalise the features of each of the critics' hidden layers.")

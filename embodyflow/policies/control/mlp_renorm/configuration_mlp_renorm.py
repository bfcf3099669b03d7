"""Configuration of the squashed Gaussian policy with batch renormalisation, and of its critics."""

from typing import ClassVar, Literal

from pydantic import Field

from embodyflow.policies.policy_config import ControlPolicyConfig


class MLPRenormConfig(ControlPolicyConfig):
    """Configuration of :class:`~embodyflow.policies.control.mlp_renorm.modeling_mlp_renorm.MLPRenorm`."""

    off_policy: ClassVar[str | None] = "crossq"
    entropy_is_density: ClassVar[bool] = True

    name: Literal["mlp_renorm"] = "mlp_renorm"
    state_dim: int = Field(ge=1, le=4096, description="S, features of the state.")
    action_dim: int = Field(ge=1, le=64, description="A, dimensions of one action.")
    hidden_size: int = Field(256, ge=1, le=4096, description="Features of a hidden layer of the policy.")
    num_layers: int = Field(2, ge=1, le=32, description="Hidden layers of the policy, and of each critic.")
    num_critics: int = Field(2, ge=1, le=64, description="Critics; the least of their values counts.")
    critic_hidden_size: int = Field(1024, ge=1, le=8192, description="Features of a hidden layer of a critic.")
    renorm_momentum: float = Field(
        0.01, gt=0, le=1, description="Share of the batch's statistics that each step moves into the running ones."
    )
    renorm_warmup_steps: int = Field(
        100_000, ge=0, description="Steps at the start that normalise by the batch's statistics alone."
    )

"""Configuration of the Gaussian policy."""

from typing import Literal

from pydantic import Field

from embodyflow.policies.policy_config import ControlPolicyConfig


class MLPGaussianConfig(ControlPolicyConfig):
    """Configuration of :class:`~embodyflow.policies.mlp_gaussian.modeling_mlp_gaussian.MLPGaussian`."""

    name: Literal["mlp_gaussian"] = "mlp_gaussian"
    state_dim: int = Field(ge=1, le=4096, description="S, features of the state.")
    action_dim: int = Field(ge=1, le=64, description="A, dimensions of one action.")
    hidden_size: int = Field(64, ge=1, le=4096, description="Features of a hidden layer.")
    num_layers: int = Field(2, ge=1, le=32, description="Hidden layers.")
    initial_log_std: float = Field(0.0, ge=-5, le=2, description="Logarithm of the standard deviation at the start.")
    normalize_observations: bool = Field(False, description="Normalise states by their running mean and variance.")
    observation_clip: float = Field(10.0, gt=0, le=1e6, description="Bound of a normalised feature, in deviations.")

"""Sizes that the policies of small MLPs share."""

from pydantic import Field

from embodyflow.policies.policy_config import ControlPolicyConfig


class MLPConfig(ControlPolicyConfig):
    """Base of the configurations of policies that read a state with an MLP."""

    state_dim: int = Field(ge=1, le=4096, description="S, features of the state.")
    hidden_size: int = Field(64, ge=1, le=4096, description="Features of a hidden layer.")
    num_layers: int = Field(2, ge=1, le=32, description="Hidden layers.")
    normalize_observations: bool = Field(False, description="Normalise states by their running mean and variance.")
    observation_clip: float = Field(10.0, gt=0, le=1e6, description="Bound of a normalised feature, in deviations.")
    normalize_returns: bool = Field(False, description="Divide rewards by the running deviation of discounted returns.")
    reward_clip: float = Field(10.0, gt=0, le=1e6, description="Bound of a divided reward.")

"""Configuration of the categorical policy."""

from typing import ClassVar, Literal

from embodyflow.policies.control.mlp.configuration_mlp import MLPConfig
from embodyflow.policies.policy_config import DiscreteControlPolicyConfig


class MLPCategoricalConfig(DiscreteControlPolicyConfig, MLPConfig):
    """Configuration of ``modeling_mlp_categorical.MLPCategorical``."""

    compiles: ClassVar[bool] = True

    name: Literal["mlp_categorical"] = "mlp_categorical"

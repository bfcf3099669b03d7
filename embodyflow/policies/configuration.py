"""The configuration of any policy, told apart by ``name``, and which kinds of jobs have which policies."""

from typing import Annotated

from pydantic import Field

from embodyflow.policies.mlp_gaussian import MLPGaussianConfig
from embodyflow.policies.tiny_vla.configuration_tiny_vla import TinyVLAConfig

EmbodiedPolicyConfig = TinyVLAConfig
ControlPolicyConfig = MLPGaussianConfig
PolicyConfig = Annotated[EmbodiedPolicyConfig | ControlPolicyConfig, Field(discriminator="name")]

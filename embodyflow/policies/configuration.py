"""The configuration of any policy, told apart by ``name``."""

from typing import Annotated

from pydantic import Field

from embodyflow.policies.mlp_gaussian import MLPGaussianConfig
from embodyflow.policies.tiny_vla.configuration_tiny_vla import TinyVLAConfig

PolicyConfig = Annotated[TinyVLAConfig | MLPGaussianConfig, Field(discriminator="name")]

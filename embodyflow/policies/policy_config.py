"""The configuration of any policy, told apart by ``name``, and which kinds of jobs have which policies."""

from typing import Annotated

from pydantic import Field

from embodyflow.policies.causal_lm.configuration_causal_lm import CausalLMConfig
from embodyflow.policies.mlp_gaussian import MLPGaussianConfig
from embodyflow.policies.openvla.configuration_openvla import OpenVLAConfig
from embodyflow.policies.pi0.configuration_pi0 import PI0Config
from embodyflow.policies.smolvla.configuration_smolvla import SmolVLAConfig
from embodyflow.policies.tiny_vla.configuration_tiny_vla import TinyVLAConfig

EmbodiedPolicyConfig = TinyVLAConfig | OpenVLAConfig | SmolVLAConfig | PI0Config
ControlPolicyConfig = MLPGaussianConfig
LanguagePolicyConfig = CausalLMConfig
PolicyConfig = Annotated[EmbodiedPolicyConfig | ControlPolicyConfig | LanguagePolicyConfig, Field(discriminator="name")]

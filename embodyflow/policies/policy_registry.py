"""Which policy a configuration means."""

from typing import assert_never

from embodyflow.policies.base import ActingPolicy, Critic, Policy
from embodyflow.policies.causal_lm.configuration_causal_lm import CausalLMConfig
from embodyflow.policies.mlp_gaussian.configuration_mlp_gaussian import MLPGaussianConfig
from embodyflow.policies.mlp_gaussian.critic_mlp_gaussian import MLPGaussianCritic
from embodyflow.policies.mlp_gaussian.policy_mlp_gaussian import MLPGaussianPolicy
from embodyflow.policies.openvla.configuration_openvla import OpenVLAConfig
from embodyflow.policies.pi0.configuration_pi0 import PI0Config
from embodyflow.policies.policy_config import ControlPolicyConfig, EmbodiedPolicyConfig, PolicyConfig
from embodyflow.policies.smolvla.configuration_smolvla import SmolVLAConfig
from embodyflow.policies.tiny_vla.configuration_tiny_vla import TinyVLAConfig
from embodyflow.policies.tiny_vla.critic_tiny_vla import TinyVLACritic
from embodyflow.policies.tiny_vla.policy_tiny_vla import TinyVLAPolicy


def build_policy(config: PolicyConfig, device: str) -> Policy:
    """Build the policy, randomly initialised where its configuration names no weights."""
    if isinstance(config, CausalLMConfig):
        from embodyflow.policies.causal_lm.policy_causal_lm import CausalLMPolicy  # seconds to import

        return CausalLMPolicy(config, device)
    return build_acting_policy(config, device)


def build_acting_policy(config: EmbodiedPolicyConfig | ControlPolicyConfig, device: str) -> ActingPolicy:
    """Build a policy that acts in environments, randomly initialised where its configuration names no weights."""
    match config:
        case TinyVLAConfig():
            return TinyVLAPolicy(config, device)
        case OpenVLAConfig():
            from embodyflow.policies.openvla.policy_openvla import OpenVLAPolicy  # seconds to import

            return OpenVLAPolicy(config, device)
        case SmolVLAConfig():
            from embodyflow.policies.smolvla.policy_smolvla import SmolVLAPolicy  # seconds to import

            return SmolVLAPolicy(config, device)
        case PI0Config():
            from embodyflow.policies.pi0.policy_pi0 import PI0Policy  # seconds to import

            return PI0Policy(config, device)
        case MLPGaussianConfig():
            return MLPGaussianPolicy(config, device)
        case _:
            assert_never(config)


def build_critic(config: PolicyConfig, device: str) -> Critic:
    """Build the critic of the policy of these sizes."""
    match config:
        case TinyVLAConfig():
            return TinyVLACritic(config, device)
        case OpenVLAConfig():
            from embodyflow.policies.openvla.critic_openvla import OpenVLACritic  # seconds to import

            return OpenVLACritic(config, device)
        case SmolVLAConfig():
            from embodyflow.policies.smolvla.critic_smolvla import SmolVLACritic  # seconds to import

            return SmolVLACritic(config, device)
        case PI0Config():
            from embodyflow.policies.pi0.critic_pi0 import PI0Critic  # seconds to import

            return PI0Critic(config, device)
        case MLPGaussianConfig():
            return MLPGaussianCritic(config, device)
        case CausalLMConfig():
            from embodyflow.policies.causal_lm.critic_causal_lm import CausalLMCritic  # seconds to import

            return CausalLMCritic(config, device)
        case _:
            assert_never(config)

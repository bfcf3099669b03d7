"""Policies of another package, one of each kind of job, and some that lack a part."""

from typing import Any, ClassVar

import gymnasium as gym
from pydantic import BaseModel

from embodyflow.errors import ConfigError
from embodyflow.policies.control.mlp_gaussian.configuration_mlp_gaussian import MLPGaussianConfig
from embodyflow.policies.control.mlp_gaussian.critic_mlp_gaussian import MLPGaussianCritic
from embodyflow.policies.control.mlp_gaussian.policy_mlp_gaussian import MLPGaussianPolicy
from embodyflow.policies.language.causal_lm.configuration_causal_lm import CausalLMConfig
from embodyflow.policies.language.causal_lm.critic_causal_lm import CausalLMCritic
from embodyflow.policies.language.causal_lm.policy_causal_lm import CausalLMPolicy
from embodyflow.policies.policy_config import EmbodiedPolicyConfig, Shape
from embodyflow.policies.policy_entry import PolicyEntry

ENTRY = PolicyEntry(config=f"{__name__}:Embodied.config_class", policy=f"{__name__}:Embodied", imitates=False)
A_NUMBER = 3


class ControlConfig(MLPGaussianConfig):
    name: str = f"{__name__}:Control"  # type: ignore[assignment]
    smoothing: float = 0.5


class Control(MLPGaussianPolicy):
    config_class, critic_class = ControlConfig, MLPGaussianCritic


class LanguageConfig(CausalLMConfig):
    name: str = f"{__name__}:Language"
    smoothing: float = 0.5


class Language(CausalLMPolicy):
    config_class, critic_class = LanguageConfig, CausalLMCritic

    @staticmethod
    def check(config: LanguageConfig, env: gym.Env[Any, Any] | None) -> None:
        if config.smoothing > 1:
            raise ConfigError(f"policy.smoothing={config.smoothing}: must be at most 1")


class EmbodiedConfig(EmbodiedPolicyConfig):
    chunk_size: int = 5
    bound: float = 1.0

    @property
    def observation_shapes(self) -> dict[str, Shape]:
        return {"state": (None,)}


class Embodied:
    """Acts, but learns from no demonstrations and has no critic."""

    config_class = EmbodiedConfig
    act = encode_instruction = evaluate = export = None

    @staticmethod
    def check(config: EmbodiedConfig, env: gym.Env[Any, Any]) -> None:
        if config.bound != env.action_space.high.max():
            raise ConfigError(f"policy.bound={config.bound}: must be {env.action_space.high.max()}, the environment's")


class NoConfig:
    pass


class NoPolicyConfig:
    config_class = BaseModel


class HalfConfig(EmbodiedPolicyConfig):
    pass


class NoShapes:
    config_class = HalfConfig


class NoMethods:
    config_class = EmbodiedConfig
    act = None


class ReadsProprioception(Embodied):
    class config_class(EmbodiedConfig):
        @property
        def observation_shapes(self) -> dict[str, Shape]:
            return {"proprioception": (7,)}


class HasFeatures(Embodied):
    """Says that it has features and lacks their methods."""

    class config_class(EmbodiedConfig):
        has_features: ClassVar[bool] = True


class GivesFeatures(HasFeatures):
    """Needs no critic of its own: a head on its features values states."""

    features = evaluate_with_features = None

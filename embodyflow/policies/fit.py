"""Whether a policy can act in an environment: checked on spaces alone, before anything is built or started."""

from typing import Any

import gymnasium as gym

from embodyflow.errors import ConfigError
from embodyflow.policies.configuration import ControlPolicyConfig, EmbodiedPolicyConfig


def check_fits(config: EmbodiedPolicyConfig | ControlPolicyConfig, env: gym.Env[Any, Any]) -> None:
    """Check that a policy of these sizes can act in the environment.

    Raises:
        ConfigError: it looks at what the environment does not show, or acts in another number of dimensions.
    """
    spaces = getattr(env.observation_space, "spaces", {"state": env.observation_space})
    shapes = {name: space.shape for name, space in spaces.items()}
    if config.state_dim and shapes.get("state") != (config.state_dim,):
        raise ConfigError(f"policy.state_dim={config.state_dim}: the environment's state has {shapes.get('state')}")
    if config.image_size and shapes.get("image") != (config.image_size, config.image_size, 3):
        raise ConfigError(
            f"policy.image_size={config.image_size}: the environment's image has {shapes.get('image')}; "
            f"set +env.kwargs.image_size={config.image_size}, or env.adapter.images and env.adapter.image_size"
        )
    if env.action_space.shape != (config.action_dim,):
        raise ConfigError(
            f"policy.action_dim={config.action_dim}: the environment's actions have {env.action_space.shape}"
        )


def policy_sizes(env: gym.Env[Any, Any]) -> dict[str, int]:
    """Return the sizes that a policy for the environment has, by the names of its configuration.

    Raises:
        ConfigError: its actions are no vector of numbers.
    """
    spaces = getattr(env.observation_space, "spaces", {"state": env.observation_space})
    shape = env.action_space.shape
    if not isinstance(env.action_space, gym.spaces.Box) or shape is None or len(shape) != 1:
        raise ConfigError(
            f"env: actions must be a Box of one dimension, are {env.action_space}; a wrapper can make them"
        )
    return {"state_dim": spaces["state"].shape[0] if "state" in spaces else 0, "action_dim": shape[0]}

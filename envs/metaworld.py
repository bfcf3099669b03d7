"""Meta-World's fifty manipulation tasks (Yu et al., 2019, arXiv:1910.10897)."""

from gymnasium.envs.registration import register

register(
    id="embodyflow/MetaWorld-v0",
    entry_point="embodyflow.environments.metaworld:MetaWorldEnv",
    disable_env_checker=True,  # it would inspect every step
)

"""ALOHA's transfer of a cube (Zhao et al., 2023, arXiv:2304.13705); needs the extra ``envs``."""

from gymnasium.envs.registration import register

register(
    id="embodyflow/Aloha-v0",
    entry_point="embodyflow.environments.aloha.environment:AlohaEnv",
    disable_env_checker=True,  # it would inspect every step
    order_enforce=False,  # the vector environment resets before it steps
)

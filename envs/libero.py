"""LIBERO's manipulation suites (Liu et al., 2023, arXiv:2306.03310); needs the extra ``libero``."""

from gymnasium.envs.registration import register

register(
    id="embodyflow/LIBERO-v0",
    entry_point="embodyflow.environments.libero.environment:LiberoEnv",
    disable_env_checker=True,  # it would inspect every step
    order_enforce=False,  # the vector environment resets before it steps
)

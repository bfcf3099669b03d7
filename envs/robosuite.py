"""Tasks of robosuite (Zhu et al., 2020, arXiv:2009.12293); needs the extra ``libero``."""

from gymnasium.envs.registration import register

register(
    id="embodyflow/Robosuite-v0",
    entry_point="embodyflow.environments.robosuite.environment:RobosuiteEnv",
    disable_env_checker=True,  # it would inspect every step
    order_enforce=False,  # the vector environment resets before it steps
)

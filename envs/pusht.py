"""PushT (Chi et al., 2023, arXiv:2303.04137); needs the extra ``pusht``."""

from gymnasium.envs.registration import register

register(
    id="embodyflow/PushT-v0",
    entry_point="embodyflow.environments.pusht.environment:PushTEnv",
    disable_env_checker=True,  # it would inspect every step
    order_enforce=False,  # the vector environment resets before it steps
)

"""Any Gymnasium environment, adapted by configuration (``env.adapter``)."""

from gymnasium.envs.registration import register

register(
    id="embodyflow/Adapted-v0",
    entry_point="embodyflow.environments.adapter:AdaptedEnv",
    disable_env_checker=True,  # it would inspect every step
    order_enforce=False,  # the adapted environment has this wrapper itself
)

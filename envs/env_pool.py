"""EnvPool's environments, batched by nature: ``env.vector.mode=entry_point env.kwargs.task_id=HalfCheetah-v5``."""

from gymnasium.envs.registration import register

register(
    id="embodyflow/EnvPool-v0",
    vector_entry_point="embodyflow.environments.batches.env_pool:EnvPoolBatch",
    max_episode_steps=1000,
)

"""Brax's environments, batched by nature: ``env.vector.mode=entry_point env.kwargs.task_id=halfcheetah``."""

from gymnasium.envs.registration import register

register(
    id="embodyflow/Brax-v0",
    vector_entry_point="embodyflow.environments.batches.brax:BraxBatch",
    max_episode_steps=1000,
)

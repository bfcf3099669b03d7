"""Environments that are batched by nature: one ``gymnasium.vector.VectorEnv`` holds all lanes of a rollout worker."""

"""Exceptions that Ray raises when an actor is gone."""

import ray

from embodyflow.config import RunConfig

ACTOR_GONE = (
    ray.exceptions.RayActorError,
    ray.exceptions.ActorUnschedulableError,  # no Ray node is left that it may run on
    ray.exceptions.OutOfMemoryError,  # Ray's memory monitor killed it
)


def explain_loss(error: Exception, config: RunConfig) -> str:
    """Return why an actor is gone, in one line, and what to change if Ray killed it because memory ran short."""
    why = first_line(error)
    if not isinstance(error, ray.exceptions.OutOfMemoryError):
        return why
    keys = ["rollout.num_workers", *(["rollout.envs_per_worker"] if hasattr(config.rollout, "envs_per_worker") else [])]
    return f"{why}; lower {' or '.join(keys)}, or give the machine more memory"


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).strip().partition("\n")[0]

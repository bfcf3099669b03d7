"""Exceptions that Ray raises when an actor is gone."""

import ray

ACTOR_GONE = (
    ray.exceptions.RayActorError,
    ray.exceptions.ActorUnschedulableError,  # no Ray node is left that it may run on
    ray.exceptions.OutOfMemoryError,  # Ray's memory monitor killed it
)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).strip().partition("\n")[0]

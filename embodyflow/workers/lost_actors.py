"""What Ray raises when an actor is gone."""

import ray

IS_GONE = (
    ray.exceptions.RayActorError,
    ray.exceptions.ActorUnschedulableError,  # it can live on no Ray node that is left
    ray.exceptions.OutOfMemoryError,  # Ray's memory monitor has killed it
)


def first_line(error: Exception) -> str:
    """Return what of the error fits into a line of ours."""
    return str(error).strip().partition("\n")[0]

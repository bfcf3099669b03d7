"""Exceptions that Ray raises when an actor is gone."""

import ray

from embodyflow.config import RunConfig
from embodyflow.process.memory import kernel_kills

ACTOR_GONE = (
    ray.exceptions.RayActorError,
    ray.exceptions.ActorUnschedulableError,  # no Ray node is left that it may run on
    ray.exceptions.OutOfMemoryError,  # Ray's memory monitor killed it
)


class LossReasons:
    """Tells why actors are gone.

    Ray's memory monitor says what it kills. The kernel may be faster, and Ray sees only the end of a process then.

    Args:
        config: Configuration of the run, whose keys decide how much memory workers need.
    """

    def __init__(self, config: RunConfig) -> None:
        keys = ["rollout.num_workers"]
        if hasattr(config.rollout, "envs_per_worker"):
            keys.append("rollout.envs_per_worker")
        self._advice = f"lower {' or '.join(keys)}, or give the machine more memory"
        self._kills_before = kernel_kills()

    def explain(self, error: Exception) -> str:
        """Return why an actor is gone, in one line, and what to change if memory ran short on this machine."""
        why = first_line(error)
        if isinstance(error, ray.exceptions.OutOfMemoryError):
            return f"{why}; {self._advice}"
        kills = kernel_kills() - self._kills_before
        if kills > 0:
            processes = "a process" if kills == 1 else f"{kills} processes"
            return f"{why} Memory ran out on this machine and its kernel killed {processes}; {self._advice}"
        return why


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).strip().partition("\n")[0]

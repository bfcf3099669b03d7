"""The number of rollout workers of each iteration."""

from collections.abc import Mapping
from typing import Protocol

from embodyflow.config import RunConfig

TRAINER_WAIT, ITERATION, ROLLOUT_IDLE = (
    *("perf/wait_for_rollout_seconds", "perf/iteration_seconds"),
    "perf/rollout_idle_share",
)
"""Metrics of an iteration that say how long trainer and rollout workers waited."""


class Scaling(Protocol):
    """Provides the rollout workers of each iteration."""

    async def start(self, last: int) -> None:
        """Provide the workers of the iteration after a commit, before anything is rolled out."""

    async def begin(self, iteration: int) -> int:
        """Provide the workers of an iteration and return their number; the rollout before has ended."""

    def end(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Take note of the metrics of an iteration."""


class FixedNumber:
    """Implements :class:`Scaling` with the workers that the run starts with.

    Args:
        config: Run configuration.
    """

    def __init__(self, config: RunConfig) -> None:
        self._number = config.rollout.num_workers

    async def start(self, last: int) -> None:
        """Do nothing: the workers are there."""

    async def begin(self, iteration: int) -> int:
        """Return the number of workers."""
        return self._number

    def end(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Do nothing: waits change nothing."""

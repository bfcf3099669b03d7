"""Where a run's evaluations happen: between iterations, or beside training."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

RunT_contra = TypeVar("RunT_contra", contravariant=True)
"""The state of a run, :class:`embodyflow.orchestration.run.iterations.nodes.Run`, which holds its evaluations."""


class Evaluations(Protocol[RunT_contra]):
    """Evaluates the versions of the policy that are due."""

    async def after(self, run: RunT_contra, index: int) -> None:
        """Evaluate the version of an iteration that is committed, or begin to, if it is due and not recorded.

        Raises:
            Exception: An evaluation failed since the last call.
        """

    async def resume(self, run: RunT_contra, last: int) -> None:
        """Do so for all versions up to ``last`` that are not recorded, such as after a recovery."""

    def pending(self, run: RunT_contra, last: int) -> Sequence[int]:
        """Return the versions up to ``last`` whose weights an evaluation still needs besides the newest, in order."""

    async def finish(self) -> None:
        """Wait until every evaluation that was begun is recorded.

        Raises:
            Exception: An evaluation failed.
        """

    async def stop(self) -> None:
        """Cancel the evaluation in flight and wait until it has ended."""

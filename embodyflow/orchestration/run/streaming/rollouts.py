"""Where an iteration's rollout comes from: its own node, or a stream of groups."""

from collections.abc import Sequence
from typing import Protocol

from embodyflow.workers.calls import NodeReport, NodeWork
from embodyflow.workers.session import Session


class Rollouts(Protocol):
    """Runs the nodes of iterations, the rollout among them."""

    async def start(self, last: int) -> None:
        """Begin after a commit, from which all iterations up to ``last`` are finished."""

    async def stop(self) -> None:
        """Leave what is in flight."""

    async def run_node(self, work: NodeWork, parents: Sequence[NodeReport] = ()) -> NodeReport:
        """Run a node; see :meth:`embodyflow.workers.session.Session.run_node`."""

    async def leave_workers_from(self, number: int) -> None:
        """Wait until nothing is played on the rollout workers from rank ``number`` on, and play nothing more there."""

    def use_workers(self, number: int) -> None:
        """Play on so many rollout workers from now on."""


class WholeIterations:
    """Implements :class:`Rollouts`: the rollout of an iteration is a node like all others.

    Args:
        session: Worker groups of the run.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    async def start(self, last: int) -> None:
        """Do nothing: an iteration starts its own rollout."""

    async def stop(self) -> None:
        """Do nothing: an iteration's rollout ends with it."""

    async def run_node(self, work: NodeWork, parents: Sequence[NodeReport] = ()) -> NodeReport:
        """Run a node."""
        return await self._session.run_node(work, parents)

    async def leave_workers_from(self, number: int) -> None:
        """Do nothing: between two rollouts nothing is played."""

    def use_workers(self, number: int) -> None:
        """Do nothing: a node runs on all workers."""

"""Where the episodes of an evaluation are played, and with which version of the policy."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from embodyflow.config import RunConfig
from embodyflow.orchestration.run.iterations.nodes import submit_node
from embodyflow.record.episodes.stage_rows import StageRows
from embodyflow.workers.calls import NodeReport, NodeWork


class Lane(Protocol):
    """Runs the nodes of an evaluation."""

    async def play(self, work: NodeWork) -> NodeReport:
        """Run a node that plays the evaluation's episodes."""

    async def run(self, work: NodeWork, parents: Sequence[NodeReport] = ()) -> NodeReport:
        """Run another node with the evaluated weights, such as a film."""


class InTurn:
    """Implements :class:`Lane`: rollout workers act with the newest weights, and training waits.

    Args:
        num_workers: Number of rollout workers that share the episodes; ``None`` is all of them.
    """

    def __init__(self, num_workers: int | None = None) -> None:
        self._num_workers = num_workers

    async def play(self, work: NodeWork) -> NodeReport:
        """Run the node."""
        return await submit_node(replace(work, num_ranks=self._num_workers))

    async def run(self, work: NodeWork, parents: Sequence[NodeReport] = ()) -> NodeReport:
        """Run the node."""
        return await submit_node(work, parents)


class BetweenRollouts:
    """Implements :class:`Lane`: rollout workers act with one version, part by part, and rollouts take turns with them.

    Args:
        version: Version of the policy.
        rows: Folder of the rows of evaluations in progress.
        config: Run configuration.
        rows_per_part: Episodes or responses of a part.
    """

    def __init__(self, version: int, rows: StageRows, config: RunConfig, rows_per_part: int) -> None:
        self._version, self._rows, self._rows_per_part = version, rows, rows_per_part
        self._num_workers = config.rollout.fewest_workers

    async def play(self, work: NodeWork) -> NodeReport:
        """Run the node in parts."""
        config = {**work.config, "rows_per_part": self._rows_per_part}
        stage = _stage(self._rows, self._version, work)
        return await self.run(replace(work, config=config, stage=stage, num_ranks=self._num_workers, in_parts=True))

    async def run(self, work: NodeWork, parents: Sequence[NodeReport] = ()) -> NodeReport:
        """Run the node."""
        return await submit_node(replace(work, policy_version=self._version), parents)


class OwnWorker:
    """Implements :class:`Lane`: a worker of its own plays the shares of rollout workers, one after the other.

    So the metrics of the shares are merged as if each worker had played its own, to the last bit.

    Args:
        version: Version of the policy.
        rows: Folder of the rows of evaluations in progress.
        config: Run configuration.
    """

    def __init__(self, version: int, rows: StageRows, config: RunConfig) -> None:
        self._version, self._rows, self._num_shares = version, rows, config.rollout.fewest_workers
        self._timeout = config.cluster.node_timeout * self._num_shares

    async def play(self, work: NodeWork) -> NodeReport:
        """Run the node for all shares."""
        config = {**work.config, "shares": self._num_shares}
        stage = _stage(self._rows, self._version, work)
        return await self.run(replace(work, config=config, stage=stage, timeout=self._timeout))

    async def run(self, work: NodeWork, parents: Sequence[NodeReport] = ()) -> NodeReport:
        """Run the node."""
        return await submit_node(replace(work, group="evaluation", policy_version=self._version), parents)


def _stage(rows: StageRows, version: int, work: NodeWork) -> str:
    return str(rows.folder(version, work.node_id).absolute())

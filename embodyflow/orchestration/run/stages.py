"""What of a run is brought to disk beside its work: rows of nodes, and commits.

Episodes are what an iteration spends its time on. As soon as a rollout node is done its rows are in the run's folder
and in the ledger; a later process reads them back instead of playing again. Every other node is made again from them,
which gives the same rows.

The next iteration begins while the files of a checkpoint are flushed. Should the machine stop meanwhile, the iteration
before was the last that counts, and the same is done again.
"""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
from prefect.logging import get_run_logger

from embodyflow.data.metrics import Metric, Reduction
from embodyflow.errors import DamageError
from embodyflow.process.durable_files import flush
from embodyflow.record.ledger import Ledger
from embodyflow.record.run_folder import RunFolder
from embodyflow.workers.calls import NodeReport, NodeWork
from embodyflow.workers.session import Session


class Stages:
    """The kept rows and the commits of one run.

    Args:
        folder: of the run.
        ledger: of the run.
        keep_checkpoints: how many of the newest checkpoints to keep.
        kept_iterations: how many iterations' episodes to keep.
    """

    def __init__(self, folder: RunFolder, ledger: Ledger, keep_checkpoints: int, kept_iterations: int = 0) -> None:
        self._folder, self._ledger = folder, ledger
        self._keep_checkpoints, self._kept_iterations = keep_checkpoints, kept_iterations
        self._turn = asyncio.Lock()
        self._writing: list[asyncio.Task[None]] = []

    def place(self, iteration: int, node_id: str) -> str:
        """Return the folder that a node's rows go to."""
        return str(self._folder.stages.folder(iteration, node_id).absolute())

    async def recall(self, session: Session, work: NodeWork) -> NodeReport | None:
        """Return what an earlier process made of the node, its rows in the buffers; ``None`` where there is nothing."""
        facts = None if work.stage is None else self._ledger.newest("stage", work.iteration, work.node_id)
        if facts is None:
            return None
        try:
            return await session.recall(work, _report_of(work, facts))
        except (FileNotFoundError, DamageError) as error:
            get_run_logger().warning("%s is run again: %s", work.node_id, error)
            return None

    def keep(self, work: NodeWork, report: NodeReport) -> None:
        """Begin to have the node's rows on disk, and then in the ledger."""
        self._writing.append(asyncio.create_task(self._keep(work, report)))

    def commit(self, iteration: int, facts: dict[str, Any]) -> None:
        """Begin to make a checkpoint count whose files are written.

        Args:
            iteration: its index.
            facts: written beside it: ``policy_version``, ``weights_digest`` and ``digests`` of the nodes' rows.
        """
        self._writing.append(asyncio.create_task(self._commit(iteration, facts)))

    async def settle(self) -> None:
        """Wait until all that was begun is on disk.

        Who gives up waiting, since something else failed meanwhile, does not stop it: a commit is finished or awaited.

        Raises:
            OSError: something could not be written.
        """
        while self._writing:
            await asyncio.wait(self._writing)
            done = [task for task in self._writing if task.done()]
            self._writing = [task for task in self._writing if not task.done()]
            if errors := [error for task in done if (error := task.exception()) is not None]:
                for other in errors[1:]:
                    errors[0].add_note(f"and at the same time: {other}")
                raise errors[0]

    async def committed(self, iteration: int, facts: dict[str, Any]) -> None:
        """Have the ledger say that the iteration counts, unless it does; of its rows the record of episodes is left.

        Args:
            iteration: its index.
            facts: of its checkpoint, from which a line is made up that a kill came before.
        """
        known = {key: facts[key] for key in ("policy_version", "weights_digest", "digests")}
        known["checkpoint"] = self._folder.checkpoints.folder(iteration).name
        async with self._turn:
            if self._ledger.newest("commit", iteration) != known:
                await asyncio.to_thread(self._ledger.append, "commit", iteration, known)
            await asyncio.to_thread(self._folder.stages.drop, iteration, self._keep_checkpoints)
            if self._kept_iterations:
                await asyncio.to_thread(self._folder.episodes.commit, iteration, self._kept_iterations)

    async def _commit(self, iteration: int, facts: dict[str, Any]) -> None:
        async with self._turn:
            await asyncio.to_thread(self._folder.checkpoints.commit, iteration, facts, self._keep_checkpoints)
        await self.committed(iteration, facts)

    async def _keep(self, work: NodeWork, report: NodeReport) -> None:
        folder = self._folder.stages.folder(work.iteration, work.node_id)
        facts = _facts_of(report)
        async with self._turn:
            # Rows that were there before and were lost are new files: they are flushed in any case.
            await asyncio.to_thread(_flush, folder)
            await asyncio.to_thread(_flush, self._folder.stages.folder(work.iteration + 1, work.node_id))
            if self._ledger.newest("stage", work.iteration, work.node_id) != facts:
                await asyncio.to_thread(self._ledger.append, "stage", work.iteration, facts)


def _flush(folder: Path) -> None:
    """Bring a node's rows to the disk, those left over for it, and the names on the way to them."""
    for path in (*folder.glob("*.rows"), *folder.glob("*.surplus"), folder, *folder.parents[:3]):
        if path.exists():  # few nodes leave rows over
            flush(path)


def _facts_of(report: NodeReport) -> dict[str, Any]:
    """Return what the ledger says of a node; timings differ from run to run and are left out."""
    metrics = {
        name: [metric.reduction, metric.value, metric.weight, *metric.samples]
        for name, metric in report.metrics.items()
        if not name.startswith("perf/")
    }
    return {
        "node_id": report.node_id,
        "group": report.group,
        "digests": list(report.digests),
        "metrics": metrics,
        "info": report.info,
        "order": None if report.order is None else report.order.tolist(),
    }


def _report_of(work: NodeWork, facts: dict[str, Any]) -> NodeReport:
    metrics = {
        name: Metric(Reduction(reduction), value, weight, tuple(samples))
        for name, (reduction, value, weight, *samples) in facts["metrics"].items()
    }
    order = facts.get("order")  # a version before did not write it
    return NodeReport(
        node_id=work.node_id,
        group=facts["group"],
        shards=(),
        metrics=metrics,
        info=facts["info"],
        digests=tuple(facts["digests"]),
        seconds=0.0,
        logs=(),
        order=None if order is None else np.array(order, np.int64),
    )

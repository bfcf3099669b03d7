"""Writes to disk in the background of a run: rows of nodes, and commits.

An iteration spends most of its time on rollouts. So once a rollout node is done, its rows go to the run's folder and
its report to the ledger, and a later process reads them instead of replaying the episodes. All other nodes rerun on
these rows, which gives the same results.

The next iteration starts while the files of a checkpoint are written and flushed. If the machine stops in between, the
previous commit is the last valid one and the iteration is replayed.
"""

import asyncio
import json
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import numpy as np
from prefect.logging import get_run_logger

from embodyflow.data.metrics import Metric, Reduction
from embodyflow.data.streaming.tickets import Selection
from embodyflow.errors import DamageError, InfrastructureError
from embodyflow.process.files.durable_files import flush
from embodyflow.process.tracing import span
from embodyflow.record.ledger import Ledger
from embodyflow.record.metrics_log import lasting_metrics
from embodyflow.record.run_folder import RunFolder
from embodyflow.workers.calls import NodeReport, NodeWork
from embodyflow.workers.session import Session

UNRESTORABLE = "env/unrestorable_tasks"
"""Metric and ledger fact: the number of tasks whose seed does not restore an episode, in runs that have such tasks."""

POSTPONED = "postponed"
"""Fact of a checkpoint: the facts of the iterations since the checkpoint before, in order."""


class Stages:
    """The kept rows and the commits of one run.

    Args:
        folder: Folder of the run.
        ledger: Ledger of the run.
        keep_checkpoints: How many of the newest checkpoints to keep.
        repeatable_iterations: How many of the newest iterations the run may have to repeat from these checkpoints.
        kept_iterations: How many of the newest iterations to keep episodes of.

    Attributes:
        ledger: Ledger of the run.
    """

    def __init__(
        self,
        folder: RunFolder,
        ledger: Ledger,
        keep_checkpoints: int,
        *,
        repeatable_iterations: int,
        kept_iterations: int = 0,
    ) -> None:
        self._folder, self.ledger, self._keep_checkpoints = folder, ledger, keep_checkpoints
        self._repeatable_iterations, self._kept_iterations = repeatable_iterations, kept_iterations
        self._postponed: list[dict[str, Any]] = []  # facts of iterations that the next commit includes
        self._lock = asyncio.Lock()
        self._writes: list[asyncio.Task[None]] = []

    def path(self, iteration: int, node_id: str) -> str:
        """Return the absolute path of the folder for a node's rows."""
        return str(self._folder.stages.folder(iteration, node_id).absolute())

    async def recall(self, session: Session, work: NodeWork) -> NodeReport | None:
        """Load a node's rows that an earlier process kept into the buffers; return its report, or ``None``."""
        facts = None if work.stage is None else self.ledger.newest("stage", work.iteration, work.node_id)
        if facts is None:
            return None
        try:
            return await session.recall(work, _report_of(work, facts))
        except (FileNotFoundError, DamageError) as error:
            get_run_logger().warning("%s reruns: %s", work.node_id, error)
            return None

    def has_rows(self, iteration: int, node_id: str) -> bool:
        """Return True if the ledger has the rows of a node, which may since be lost."""
        return self.ledger.newest("stage", iteration, node_id) is not None

    def selection(self, iteration: int) -> Selection | None:
        """Return the groups that the ledger names for an iteration, or ``None``."""
        facts = self.ledger.newest("groups", iteration)
        return None if facts is None else Selection.of_facts(iteration, facts)

    async def record_selection(self, selection: Selection) -> None:
        """Append the groups of an iteration to the ledger."""
        await self.record("groups", selection.iteration, selection.facts())

    def num_workers(self, iteration: int) -> int | None:
        """Return the number of rollout workers that the ledger has for an iteration, or ``None``."""
        facts = self.ledger.newest("workers", iteration)
        return None if facts is None else int(facts["number"])

    async def record_num_workers(self, iteration: int, number: int) -> None:
        """Append the number of rollout workers of an iteration to the ledger."""
        await self.record("workers", iteration, {"number": number})

    async def record(self, kind: str, iteration: int, facts: dict[str, Any]) -> None:
        """Append a line to the ledger and wait until it is on disk."""
        async with self._lock:
            await asyncio.to_thread(self.ledger.append, kind, iteration, facts)

    def keep(self, work: NodeWork, report: NodeReport) -> None:
        """Start to flush the node's rows and then to append its report to the ledger."""
        self._writes.append(asyncio.create_task(self._keep(work, report)))

    def keep_surplus(self, work: NodeWork) -> None:
        """Start to flush the rows that a node left over for the next iteration."""
        self._writes.append(asyncio.create_task(self._keep_surplus(work)))

    def postpone(self, iteration: int, facts: dict[str, Any]) -> None:
        """Let the next commit include an iteration without a checkpoint; ``facts`` are those of :meth:`commit`."""
        self._postponed.append({"iteration": iteration, **facts})

    def forget_postponed(self) -> None:
        """Forget the iterations that no commit includes; the run repeats them."""
        self._postponed.clear()

    def commit(
        self, iteration: int, facts: dict[str, Any], saving: Awaitable[None], *, is_evaluated: bool = False
    ) -> None:
        """Start to commit a checkpoint, and the iterations that were postponed, as soon as its files are written.

        Args:
            iteration: Index of the iteration.
            facts: Facts to store with it: ``policy_version``, ``weights_digest``, the ``digests`` of nodes' rows and,
                if there are any, the number of unrestorable tasks.
            saving: Writes the files.
            is_evaluated: Whether the checkpoint is evaluated beside training, and so stays until that is done.
        """
        if self._postponed:
            facts, self._postponed = {**facts, POSTPONED: self._postponed}, []
        self._writes.append(asyncio.create_task(self._commit(iteration, facts, saving, is_evaluated=is_evaluated)))

    def forget_evaluation(self, iteration: int) -> None:
        """Start to remove what the recorded evaluation after an iteration no longer needs, once that is committed."""
        self._writes.append(asyncio.create_task(self._forget_evaluation(iteration)))

    async def drain(self) -> None:
        """Wait until all pending writes are on disk.

        Cancelling the caller does not cancel the writes: a commit that has started always completes.

        Raises:
            OSError: A write failed.
            InfrastructureError: The trainer was lost before it had written a checkpoint.
        """
        while self._writes:
            await asyncio.wait(self._writes)
            done = [task for task in self._writes if task.done()]
            self._writes = [task for task in self._writes if not task.done()]
            if errors := [error for task in done if (error := task.exception()) is not None]:
                errors.sort(key=lambda error: isinstance(error, InfrastructureError))  # a recovery mends only these
                for other in errors[1:]:
                    errors[0].add_note(f"and at the same time: {other}")
                raise errors[0]

    async def record_commit(self, iteration: int, facts: dict[str, Any]) -> None:
        """Append a commit to the ledger unless it is there; keep its iterations' episodes and drop their other rows.

        Args:
            iteration: Index of the last iteration of the commit.
            facts: Facts stored with its checkpoint. They restore ledger entries that a kill prevented.
        """
        commits = {each["iteration"]: _recorded(each) for each in facts.get(POSTPONED, [])}
        checkpoint = self._folder.checkpoints.folder(iteration).name
        commits[iteration] = {**_recorded(facts), "checkpoint": checkpoint}
        async with self._lock:
            for index, known in commits.items():
                if not _is_same(self.ledger.newest("commit", index), known):
                    await asyncio.to_thread(self.ledger.append, "commit", index, known)
                await asyncio.to_thread(self._folder.stages.drop, index, self._repeatable_iterations)
                if self._kept_iterations:
                    await asyncio.to_thread(self._folder.episodes.commit, index, self._kept_iterations)

    async def record_evaluation(self, iteration: int, weights_digest: str) -> None:
        """Append the metrics of the evaluation after an iteration to the ledger unless they are there.

        Args:
            iteration: Index of the iteration.
            weights_digest: SHA-256 of the evaluated weights.
        """
        line = self._folder.metrics.evaluation(iteration)
        if line is None:
            return
        metrics = {name: value for name, value in lasting_metrics(line).items() if name != "iteration"}
        facts = {"weights_digest": weights_digest, "metrics": metrics}
        async with self._lock:
            if not _is_same(self.ledger.newest("evaluation", iteration), facts):
                await asyncio.to_thread(self.ledger.append, "evaluation", iteration, facts)

    def is_evaluated(self, iteration: int, weights_digest: str) -> bool:
        """Return True if the ledger has the evaluation of an iteration with these weights."""
        facts = self.ledger.newest("evaluation", iteration)
        return facts is not None and facts["weights_digest"] == weights_digest

    async def restore_metrics(self, iteration: int) -> None:
        """Remove the metrics of later iterations; rebuild those that differ from the ledger, and log a warning."""
        async with self._lock:
            differing = await asyncio.to_thread(self._folder.metrics.restore, iteration, self.ledger)
        if differing:
            get_run_logger().warning(
                "%s: lines of iterations %s differed from the ledger and are rebuilt without perf/ metrics",
                self._folder.metrics.path,
                ", ".join(map(str, differing)),
            )

    async def _commit(
        self, iteration: int, facts: dict[str, Any], saving: Awaitable[None], *, is_evaluated: bool
    ) -> None:
        await saving
        async with self._lock:
            with span("flush checkpoint", "disk", track="disk", iteration=iteration):
                await asyncio.to_thread(self._folder.checkpoints.commit, iteration, facts, self._keep_checkpoints)
                if is_evaluated:
                    await asyncio.to_thread(self._folder.evaluating.adopt, iteration, self._folder.checkpoints)
        await self.record_commit(iteration, facts)

    async def _forget_evaluation(self, iteration: int) -> None:
        async with self._lock:  # which the commit asked for earlier
            await asyncio.to_thread(self._folder.evaluations.remove, iteration)
            if iteration in self._folder.evaluating.committed():
                await asyncio.to_thread(self._folder.evaluating.drop, iteration)

    async def _keep_surplus(self, work: NodeWork) -> None:
        async with self._lock:
            with span("flush surplus rows", "disk", track="disk", iteration=work.iteration, node=work.node_id):
                await asyncio.to_thread(_flush, self._folder.stages.folder(work.iteration + 1, work.node_id))

    async def _keep(self, work: NodeWork, report: NodeReport) -> None:
        await self._keep_surplus(work)
        folder = self._folder.stages.folder(work.iteration, work.node_id)
        facts = _facts_of(report)
        async with self._lock:
            # Flush even if the ledger has this entry: rows that were lost and recreated are new files.
            with span("flush rows", "disk", track="disk", iteration=work.iteration, node=work.node_id):
                await asyncio.to_thread(_flush, folder)
            if self.ledger.newest("stage", work.iteration, work.node_id) != facts:
                await asyncio.to_thread(self.ledger.append, "stage", work.iteration, facts)


def _recorded(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts in the ledger's line of an iteration, from those stored with a checkpoint."""
    needed, optional = ("policy_version", "weights_digest", "digests"), facts.keys() & {UNRESTORABLE, "metrics"}
    return {key: facts[key] for key in (*needed, *sorted(optional))}  # iteration 0 has no metrics


def _is_same(known: dict[str, Any] | None, facts: dict[str, Any]) -> bool:
    """Return True if both are the same text in the ledger, where NaN equals NaN."""
    return json.dumps(known, sort_keys=True) == json.dumps(facts, sort_keys=True)


def _flush(folder: Path) -> None:
    """Flush a node's rows, its surplus rows and the folders that lead to them."""
    for path in (*folder.glob("*.rows"), *folder.glob("*.surplus"), folder, *folder.parents[:3]):
        if path.exists():  # few nodes leave surplus rows
            flush(path)


def _facts_of(report: NodeReport) -> dict[str, Any]:
    """Return the ledger's facts of a node, without timings, which differ from run to run."""
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
    order = facts.get("order")  # entries of earlier versions lack it
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

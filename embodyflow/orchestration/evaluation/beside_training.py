"""Evaluations beside training: a version is evaluated while the iterations after it are trained.

The weights of the version stay in the buffers, and its checkpoint on disk, until its evaluation is recorded. So a run
that goes back to a later commit can evaluate the version again. One version is held at a time: an iteration that is due
for evaluation ends when the evaluation before is recorded.
"""

import asyncio
import time
from collections.abc import Sequence

from embodyflow.orchestration.evaluation.lanes import BetweenRollouts, Lane, OwnWorker
from embodyflow.orchestration.evaluation.versions import evaluate_version, is_complete
from embodyflow.orchestration.run.iterations.nodes import Run
from embodyflow.process.tracing import span


class BesideTraining:
    """Implements :class:`~embodyflow.orchestration.run.evaluations.Evaluations`."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._index = -1  # of the evaluation in flight
        self._waited_for_since: float | None = None

    async def after(self, run: Run, index: int) -> None:
        """Begin to evaluate the version of an iteration, once the evaluation before is recorded."""
        if self._task is not None and self._task.done():
            self._end()
        digest = _digest_of(run, index)
        if digest is None or self._index == index or is_complete(run, index, digest):
            return
        await self.finish()
        run.session.hold(index)
        self._index = index
        self._task = asyncio.create_task(self._evaluate(run, index, digest), name=f"evaluation-{index}")

    async def resume(self, run: Run, last: int) -> None:
        """Evaluate all versions up to ``last`` that are not recorded, such as after a recovery."""
        for index in sorted({*self.pending(run, last), last}):  # the commit of the last may not be on disk yet
            await self.after(run, index)

    def pending(self, run: Run, last: int) -> Sequence[int]:
        """Return the versions up to ``last`` whose checkpoints wait for an evaluation, in order."""
        folder = run.folder
        kept = {*folder.checkpoints.committed(), *folder.evaluating.committed()}
        due = [each for each in sorted(kept) if each <= last and run.config.evaluates_after(each)]
        digests = {each: folder.checkpoints_of(each).weights_digest(each) for each in due}
        return [each for each, digest in digests.items() if digest is None or not is_complete(run, each, digest)]

    async def finish(self) -> None:
        """Wait until the evaluation in flight is recorded.

        Raises:
            Exception: The evaluation failed.
        """
        if (task := self._task) is None:
            return
        self._waited_for_since = time.perf_counter()
        with span(f"wait for the evaluation of version {self._index}", "wait", track="waits"):
            await asyncio.wait([task])  # which leaves it alone if this wait is cancelled
        if self._task is task:
            self._end()

    async def stop(self) -> None:
        """Cancel the evaluation in flight and wait until it has ended."""
        task, self._task, self._index = self._task, None, -1
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _end(self) -> None:
        """Take note that the evaluation has ended; raise its error if it failed."""
        task, self._task, self._index = self._task, None, -1
        if task is not None:
            task.result()

    async def _evaluate(self, run: Run, index: int, digest: str) -> None:
        started, self._waited_for_since = time.perf_counter(), None

        def timing() -> dict[str, float]:
            now = time.perf_counter()
            waited = 0.0 if self._waited_for_since is None else now - self._waited_for_since
            return {"perf/evaluation_seconds": now - started, "perf/wait_for_evaluation_seconds": waited}

        with span(f"evaluate version {index}", "evaluation", track="evaluations", version=index):
            await evaluate_version(run, index, _lane(run, index), digest, timing)
        await run.session.release(index)
        run.stages.forget_evaluation(index)


def _digest_of(run: Run, version: int) -> str | None:
    """Return the SHA-256 of a version that is held or the newest; ``None`` if training has gone on since."""
    session = run.session
    newest = session.weights_digest if session.policy_version == version else None
    return session.held_digest(version) or newest


def _lane(run: Run, version: int) -> Lane:
    evaluation, rows = run.config.evaluation, run.folder.evaluations
    assert evaluation is not None, "no evaluation is due without one"
    if evaluation.own_worker:
        return OwnWorker(version, rows, run.config)
    return BetweenRollouts(version, rows, run.config, evaluation.rows_per_part)

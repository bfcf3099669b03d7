"""Evaluations between iterations: training waits for each of them."""

from collections.abc import Sequence

from embodyflow.orchestration.evaluation.lanes import InTurn
from embodyflow.orchestration.evaluation.versions import evaluate_version
from embodyflow.orchestration.run.iterations.nodes import Run


class BetweenIterations:
    """Implements :class:`~embodyflow.orchestration.run.evaluations.Evaluations`."""

    async def after(self, run: Run, index: int) -> None:
        """Evaluate the newest version, if that is due and not recorded."""
        # Iterations that were rolled out ahead may have been trained since: the version was evaluated before that.
        if not run.config.evaluates_after(index) or run.session.policy_version > index:
            return
        if run.folder.metrics.evaluation(index) is None:
            run.folder.write_status("evaluate", index, run.config.iterations)
        lane = InTurn(run.config.rollout.fewest_workers)
        await evaluate_version(run, index, lane, run.session.weights_digest)
        run.folder.write_status("train", index, run.config.iterations)

    async def resume(self, run: Run, last: int) -> None:
        """Evaluate the newest version, if that is due and not recorded."""
        await self.after(run, last)

    def pending(self, run: Run, last: int) -> Sequence[int]:
        """Return no versions: training has waited for all evaluations of earlier ones."""
        return ()

    async def finish(self) -> None:
        """Do nothing: training has waited."""

    async def stop(self) -> None:
        """Do nothing: an evaluation is part of an iteration."""

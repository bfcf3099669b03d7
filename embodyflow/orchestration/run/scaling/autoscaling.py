"""A number of rollout workers that follows waiting times, and is recorded before an iteration uses it.

What the ledger says counts: a number is decided once, and a run that continues, or a reproduction, repeats it. The rows
of an iteration do not depend on the number, so neither do the weights.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping

from prefect.logging import get_run_logger

from embodyflow.config.autoscale import AutoscaleConfig
from embodyflow.orchestration.run.scaling.rule import Waits, next_number
from embodyflow.orchestration.run.scaling.scaling import ITERATION, ROLLOUT_IDLE, TRAINER_WAIT
from embodyflow.orchestration.run.stages import Stages
from embodyflow.orchestration.run.streaming.rollouts import Rollouts
from embodyflow.workers.session import Session


class Autoscaling:
    """Implements :class:`~embodyflow.orchestration.run.scaling.scaling.Scaling`.

    Args:
        settings: Bounds and shares.
        first: Number of the first iteration.
        session: Worker groups of the run, with as many rollout workers.
        stages: Ledger.
        rollouts: Source of the iterations' rollouts.
        record_processes: Records the process ids of the workers.
    """

    def __init__(
        self,
        settings: AutoscaleConfig,
        first: int,
        session: Session,
        stages: Stages,
        rollouts: Rollouts,
        record_processes: Callable[[], Awaitable[None]],
    ) -> None:
        self._settings, self._first = settings, first
        self._session, self._stages, self._rollouts = session, stages, rollouts
        self._record_processes = record_processes
        self._forget()

    async def start(self, last: int) -> None:
        """Provide the workers of the iteration after a commit, as the ledger says, or those of the commit.

        The waits of earlier iterations are forgotten.
        """
        self._forget()
        recorded = (self._stages.num_workers(iteration) for iteration in (last + 1, last))
        await self._resize(next((number for number in recorded if number is not None), self._first))

    async def begin(self, iteration: int) -> int:
        """Provide the workers of an iteration and return their number, which is decided unless the ledger has it."""
        present = self._session.num_rollout_workers
        number = self._stages.num_workers(iteration)
        if number is None:
            number = next_number(present, self._waits, self._settings)
            await self._stages.record_num_workers(iteration, number)
            if number == present:  # an iteration that waits for a worker to start says nothing of the new number
                self._decided[iteration] = number
        if number != present:
            get_run_logger().info("iteration %d has %d rollout workers, after %d", iteration, number, present)
            await self._rollouts.leave_workers_from(number)
            await self._resize(number)
            self._rollouts.use_workers(number)
        return number

    def end(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Take note of the waits of an iteration whose number was decided here, and not by an earlier process.

        Rows that an earlier process made are there at once.
        """
        number = self._decided.pop(iteration, None)
        if number is not None and (seconds := metrics[ITERATION]) > 0:
            self._waits.append(Waits(number, metrics[TRAINER_WAIT] / seconds, metrics[ROLLOUT_IDLE]))

    async def _resize(self, number: int) -> None:
        """Provide so many workers, and tell all of them, also if an earlier attempt failed half way."""
        await self._session.resize_rollouts(number)
        await self._record_processes()

    def _forget(self) -> None:
        self._waits = deque[Waits](maxlen=self._settings.patience)
        self._decided: dict[int, int] = {}

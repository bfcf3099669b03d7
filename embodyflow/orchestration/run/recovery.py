"""What a run does about parts that fail: it replaces them, goes back to the last commit and does the step again.

A rollout worker that dies and rows that are lost are mended where that happens, in the middle of an iteration
(:mod:`embodyflow.workers.group`,
:mod:`embodyflow.orchestration.run.graph_run`). All else ends here. Bugs do not: the same again would only
repeat them, so they end the run, with its last commit intact.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from prefect.logging import get_run_logger

from embodyflow.errors import DamageError, InfrastructureError
from embodyflow.orchestration.run.nodes import Run

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.5


async def surviving(run: Run, what: str, step: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Do a step; where infrastructure fails, mend it, restore the last commit and do the step again.

    Args:
        run: whose workers do it.
        what: for the log.
        step: what is to be done; it starts from the commit that the workers are at, which after a failure may be an
            earlier one than before.

    Raises:
        Exception: whatever the step raised that is no failure of infrastructure, or the last such failure after
            ``cluster.max_recoveries`` attempts to recover.
    """
    failures = 0
    while True:
        try:
            if failures:
                await asyncio.sleep(FIRST_PAUSE_SECONDS * 2 ** (failures - 1))
                await recover(run)
            return await step()
        except Exception as error:
            failures += 1
            if not is_infrastructure(error) or failures > run.config.cluster.max_recoveries:
                raise
            get_run_logger().warning("%s failed and is done again: %s", what, "; ".join(map(str, _leaves(error))))


async def recover(run: Run) -> None:
    """Replace what is gone, and bring workers and folder back to the last commit."""
    await run.stages.settle()
    await run.session.mend()
    await note_processes(run)
    if run.folder.checkpoints.committed():
        await restore(run)


async def note_processes(run: Run) -> None:
    """Write down which process is what."""
    run.folder.write_processes({"driver": os.getpid(), **await run.session.processes()})


async def restore(run: Run) -> int:
    """Bring workers and folder back to the last commit whose checkpoint is intact; return its iteration.

    Raises:
        DamageError: no checkpoint is intact.
        RuntimeError: a checkpoint holds other weights than it says.
    """
    last = newest_intact(run)
    await run.session.load_reference(run.folder.checkpoints.folder(0))
    for version in _acted_with_after(last, run):
        await _publish(version, run)
    run.folder.metrics.drop_after(last)
    ahead = last + 1 + run.turns.max_staleness
    run.folder.stages.drop_journals_after(ahead)  # which may learn at another rate this time
    for index in range(last + 1, ahead + 1):
        await run.session.free(f"{index}/")
    await run.stages.committed(last, run.folder.checkpoints.facts(last))
    run.turns.begin_after(last)
    return last


def _acted_with_after(iteration: int, run: Run) -> range:
    """Return the versions whose weights rollouts after an iteration act with, up to its own."""
    return range(run.turns.rollout_version(iteration + 1), iteration + 1)


async def _publish(version: int, run: Run) -> None:
    """Bring the trainer to a checkpoint, and publish its weights."""
    await run.session.restore(run.folder.checkpoints.folder(version))
    digest = await run.session.publish_weights(version)
    if digest != run.folder.checkpoints.facts(version)["weights_digest"]:
        raise RuntimeError(
            f"checkpoint {run.folder.checkpoints.folder(version)} holds weights {digest[:12]}, not those it says"
        )


def newest_intact(run: Run) -> int:
    """Return the last committed iteration from which the run can go on; the damaged one after it is dropped.

    Its own checkpoint is what was written, and so are those whose weights the next rollouts act with.
    """
    run.folder.checkpoints.verify(0)  # the reference policy: nothing stands in for it
    while True:
        committed = run.folder.checkpoints.committed()
        try:
            for version in reversed(_acted_with_after(committed[-1], run)):
                damaged = version
                run.folder.checkpoints.verify(version)
        except DamageError as error:
            get_run_logger().warning("%s: the iteration is done again", error)
            for iteration in [each for each in committed if each >= damaged]:
                run.folder.checkpoints.drop(iteration)
            run.folder.stages.drop_after(damaged + run.turns.max_staleness)
        else:
            return committed[-1]


def is_infrastructure(error: BaseException) -> bool:
    """Say whether the same again may succeed: all that failed is infrastructure."""
    return all(isinstance(each, InfrastructureError) for each in _leaves(error))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error

"""Recovery from infrastructure failures: replace the parts that failed, restore the last commit, retry the step.

The loss of a rollout worker or of rows is repaired within the iteration (:mod:`embodyflow.workers.group`,
:mod:`embodyflow.orchestration.run.iterations.graph_run`). All other infrastructure failures are handled here. Bugs are
not retried, since they would only repeat: they end the run, and its last commit stays intact.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from prefect.logging import get_run_logger

from embodyflow.errors import DamageError, InfrastructureError
from embodyflow.orchestration.run.iterations.nodes import Run
from embodyflow.orchestration.run.processes import write_processes
from embodyflow.process.tracing import span
from embodyflow.workers.gpu_sharing import has_room_without
from embodyflow.workers.ray_threads import in_thread

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.5


async def with_recovery(run: Run, name: str, step: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a step; after a failure of infrastructure recover and retry it, with backoff.

    Args:
        run: Run whose workers execute the step.
        name: Name of the step in the log.
        step: Starts from the commit that the workers hold, which after a recovery may be an earlier one than before.

    Raises:
        StorageError: The run's folder is gone.
        Exception: The step's error if it is not retryable, or its last one after ``cluster.max_recoveries`` recoveries.
    """
    failures = 0
    while True:
        try:
            run.folder.require_present()  # a recovery would go on without the commits
            if failures:
                await asyncio.sleep(FIRST_PAUSE_SECONDS * 2 ** (failures - 1))
                await recover(run)
            return await step()
        except Exception as error:
            failures += 1
            if not is_retryable(error) or failures > run.config.cluster.max_recoveries:
                raise
            get_run_logger().warning("%s failed and is retried: %s", name, "; ".join(map(str, leaves(error))))


async def must_leave_nodes(run: Run) -> bool:
    """Return True if workers or buffers are on Ray nodes that are being drained, and other nodes have room for them.

    Then :func:`recover` moves them. The end of an iteration is the time for that: no rows are lost, because those of
    rollouts ahead are on disk. A node that goes in the middle of an iteration is a node that died.
    """
    draining = [node for node in run.cluster.draining if run.session.uses(node)]
    if not draining:
        return False
    names, can_leave = ", ".join(node[:8] for node in draining), bool(await _nodes_to_leave(run))
    what = "its workers move to other nodes" if can_leave else "other nodes have no room for its workers, which stay"
    get_run_logger().warning("Ray drains node %s: %s", names, what)
    return can_leave


async def _nodes_to_leave(run: Run) -> frozenset[str]:
    draining = run.cluster.draining
    can_leave = bool(draining) and await in_thread(has_room_without, draining, run.config)
    return draining if can_leave else frozenset()


async def recover(run: Run) -> None:
    """Replace lost workers and those on drained nodes, and restore workers and folder to the last commit."""
    with span("recover", "run", track="phases"):
        await run.evaluations.stop()
        await run.rollouts.stop()
        await _end_writes(run)
        await run.session.mend(await _nodes_to_leave(run))
        await record_processes(run)
        if run.folder.checkpoints.committed():
            await restore(run)


async def _end_writes(run: Run) -> None:
    """Wait until nothing is written any more; a checkpoint that a lost trainer did not write is no commit."""
    try:
        await run.stages.drain()
    except InfrastructureError as error:
        get_run_logger().warning("a checkpoint was not written: %s", error)


async def record_processes(run: Run) -> None:
    """Write the process ids of the driver and the workers to the run's folder."""
    await write_processes(run.folder, run.session)


async def restore(run: Run) -> int:
    """Restore workers and folder to the last commit whose checkpoint is intact; return its iteration.

    Raises:
        DamageError: No checkpoint is intact.
        RuntimeError: The weights in a checkpoint do not have the digest recorded with them.
    """
    finish_roll_back(run)
    last = newest_intact_commit(run)
    await run.session.load_reference(run.folder.checkpoints.folder(0))
    evaluated = run.evaluations.pending(run, last)
    for version in sorted({*evaluated, *_rollout_versions_after(last, run)}):
        await _restore_and_publish(version, run)
        if version in evaluated:
            run.session.hold(version)
    _forget_evaluations(run, evaluated, last)
    ahead = last + 1 + run.turns.max_staleness
    run.folder.stages.drop_after(ahead)  # their weights may be retrained with another learning rate
    run.stages.forget_postponed()
    for index in range(last + 1, ahead + 1):
        _drop_uncommitted_segments(index, last, run)
        await run.session.free(f"{index}/")
    await run.stages.record_commit(last, run.folder.checkpoints.facts(last))
    await run.stages.restore_metrics(last)
    run.turns.reset(last)
    await run.scaling.start(last)
    await run.rollouts.start(last)
    return last


def finish_roll_back(run: Run) -> None:
    """Remove what a roll-back made void, unless the run has returned to its commit since.

    A process that was killed after it recorded the roll-back may have left any part of it.
    """
    lines = run.stages.ledger.roll_backs()
    if not lines or run.stages.ledger.newest("commit", lines[-1].facts["to"]) is not None:
        return
    last = lines[-1].facts["to"]
    for iteration in run.folder.checkpoints.committed():
        if iteration > last:
            run.folder.checkpoints.drop(iteration)
    run.folder.stages.drop_after(last + 1 + run.turns.max_staleness)


def _forget_evaluations(run: Run, needed: Sequence[int], last: int) -> None:
    """Remove checkpoints that no evaluation needs, and rows of weights that may be trained otherwise this time."""
    run.folder.evaluations.drop_after(last)
    for iteration in set(run.folder.evaluating.committed()) - set(needed):
        run.folder.evaluating.drop(iteration)


def _drop_uncommitted_segments(index: int, last: int, run: Run) -> None:
    """Drop what an iteration's rollout sampled with versions after ``last``, which are not on disk."""
    versions = run.turns.rollout_versions(index)
    if (known := sum(version <= last for version in versions)) < len(versions):
        run.folder.stages.drop_segments(index, known)


def _rollout_versions_after(iteration: int, run: Run) -> range:
    """Return the policy versions that rollouts after a commit may still use, up to its own."""
    return range(run.turns.rollout_version(iteration + 1), iteration + 1)


async def _restore_and_publish(version: int, run: Run) -> None:
    """Restore the trainer from a checkpoint and publish its weights."""
    checkpoints = run.folder.checkpoints_of(version)
    await run.session.restore(checkpoints.folder(version))
    digest = await run.session.publish_weights(version)
    if digest != checkpoints.facts(version)["weights_digest"]:
        raise RuntimeError(
            f"checkpoint {checkpoints.folder(version)}: its weights have digest {digest[:12]}, not the recorded one"
        )


def newest_intact_commit(run: Run) -> int:
    """Return the last committed iteration from which the run can continue; drop damaged commits after it.

    Its own checkpoint is intact, and so are those of the versions that the next rollouts and evaluations use.
    """
    run.folder.checkpoints.verify(0)  # the reference policy, which nothing can replace
    while True:
        committed = run.folder.checkpoints.committed()
        try:
            evaluated = run.evaluations.pending(run, committed[-1])
            for version in sorted({*evaluated, *_rollout_versions_after(committed[-1], run)}, reverse=True):
                damaged = version
                run.folder.checkpoints_of(version).verify(version)
        except DamageError as error:
            get_run_logger().warning("%s: the run returns to an earlier commit", error)
            for iteration in [each for each in committed if each >= damaged]:
                run.folder.checkpoints.drop(iteration)
        else:
            return committed[-1]


def is_retryable(error: BaseException) -> bool:
    """Return True if a retry may succeed: every error, in a group too, is a failure of infrastructure."""
    return all(isinstance(each, InfrastructureError) for each in leaves(error))


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors in a group, or a single error."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error

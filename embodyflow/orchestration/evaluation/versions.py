"""The evaluation of one version of the policy, wherever it is played."""

from collections.abc import Callable, Mapping
from typing import Any

from embodyflow.orchestration.display.progress_log import log_progress
from embodyflow.orchestration.evaluation.evaluation import film, is_filmed
from embodyflow.orchestration.evaluation.lanes import Lane
from embodyflow.orchestration.run.iterations.nodes import Run
from embodyflow.references import resolve


async def evaluate_version(
    run: Run, index: int, lane: Lane, digest: str, timing: Callable[[], Mapping[str, float]] = dict
) -> None:
    """Evaluate the version of an iteration, record the result under the iteration and film it, if that is missing.

    Args:
        run: Run that trained the version.
        index: Index of the iteration.
        lane: Plays the episodes.
        digest: SHA-256 of the version's weights.
        timing: Returns further metrics once the episodes are played.
    """
    if run.folder.metrics.evaluation(index) is None:
        metrics = await resolve(run.config.evaluator)(run, index, lane)
        _record(run, index, {**metrics, **timing()})
        log_progress(run, index, metrics)
    # Also if the process that evaluated was killed before this line.
    await run.stages.record_evaluation(index, digest)
    if not _has_film(run, index):  # a run may fail between the two
        await film(run, index, lane)


def is_complete(run: Run, index: int, digest: str) -> bool:
    """Return True if nothing is left of the evaluation after an iteration, or none is due.

    Args:
        run: Run that trained the version.
        index: Index of the iteration.
        digest: SHA-256 of the version's weights. An iteration that is repeated may have others.
    """
    return not run.config.evaluates_after(index) or (run.stages.is_evaluated(index, digest) and _has_film(run, index))


def _has_film(run: Run, index: int) -> bool:
    """Return True if the evaluation's film is recorded, or none is due."""
    return not run.config.records_video_after(index) or is_filmed(run, index)


def _record(run: Run, index: int, metrics: Mapping[str, Any]) -> None:
    run.folder.metrics.append({"iteration": index, **metrics})
    numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    for tracker in run.trackers:
        tracker.log(index, numbers)

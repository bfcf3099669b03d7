"""Where a roll-back returns to, and when it takes place: pure functions of the roll-backs before it.

The first roll-back is done at once. A finding that comes again soon afterwards says that its cause lasts, or that the
commit that the run returned to is damaged already. So the run waits: it goes on for a while, in which an outage may
end, and then discards all of that and some iterations before.
"""

from collections.abc import Sequence
from typing import NamedTuple

from embodyflow.health.history import Finding


class Done(NamedTuple):
    """A roll-back that was done.

    Attributes:
        found: Iteration with the finding.
        to: Iteration that was returned to.
        detector: Detector whose finding it was for.
        metric: Metric that showed the finding.
        threshold: Value that the metric passed.
    """

    found: int
    to: int
    detector: str = ""
    metric: str = ""
    threshold: float = 0.0


def is_on_probation(iteration: int, iterations: int, earlier: Sequence[Done]) -> bool:
    """Return True if an iteration is at most ``iterations`` after the one that the newest roll-back was for.

    Args:
        iteration: Index of the iteration.
        iterations: Number of newest iterations that a roll-back discards.
        earlier: The roll-backs so far.
    """
    return bool(earlier) and iteration <= earlier[-1].found + iterations


def due(found: int, iterations: int, earlier: Sequence[Done]) -> int:
    """Return the iteration after which the roll-back for a finding is done.

    It is the iteration with the finding. If the finding comes on probation, it is ``iterations`` later, and each
    further time in a row twice as many.

    Args:
        found: Iteration with the finding.
        iterations: Number of newest iterations that a roll-back discards.
        earlier: The roll-backs so far.
    """
    count, at = 0, found
    while count < len(earlier) and is_on_probation(at, iterations, earlier[: len(earlier) - count]):
        count += 1
        at = earlier[-count].found
    return found + (iterations * 2 ** (count - 1) if count else 0)


def wanted_commit(finding: Finding, found: int, iterations: int, earlier: Sequence[Done]) -> int:
    """Return the iteration that a roll-back is to return to.

    It is the one ``iterations`` before the finding, or an earlier one that the finding knows to be healthy. If the
    finding comes on probation, it is as far again before the commit that the newest roll-back returned to.

    Args:
        finding: The finding.
        found: Iteration with the finding.
        iterations: Number of newest iterations that a roll-back discards.
        earlier: The roll-backs so far.
    """
    wanted = [found - iterations]
    if is_on_probation(found, iterations, earlier):
        wanted.append(earlier[-1].to - iterations)
    if finding.healthy is not None:
        wanted.append(finding.healthy)
    return max(min(wanted), 0)


def target_of(committed: Sequence[int], wanted: int, found: int, max_staleness: int) -> int:
    """Return the iteration that a roll-back returns to.

    It is the wanted one. If it has no commit, because the run keeps fewer or one is damaged, it is the nearest commit
    before it, else the nearest after it; else the start of the run.

    Args:
        committed: Iterations with a checkpoint, in order.
        wanted: Iteration to return to.
        found: Iteration with the finding.
        max_staleness: How many older versions the rollouts after a commit need.
    """
    usable = [each for each in committed if 0 < each < found and _has_versions(each, committed, max_staleness)]
    before, after = ([each for each in usable if (each <= wanted) is side] for side in (True, False))
    return 0 if wanted == 0 else max(before, default=min(after, default=0))


def _has_versions(iteration: int, committed: Sequence[int], max_staleness: int) -> bool:
    return set(committed).issuperset(range(max(iteration - max_staleness, 0), iteration + 1))

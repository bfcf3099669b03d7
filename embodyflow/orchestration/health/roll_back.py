"""Roll-backs: a run discards its newest iterations and goes on from an earlier commit with changed keys.

The line in the ledger is the roll-back. It is written once nothing of the run is in flight any more. All that follows
is what every resumed run does: it starts its workers with the changed keys, removes what the line made void
(:func:`~embodyflow.orchestration.run.recovery.finish_roll_back`), and restores the commit. So a process that is killed
at any moment leaves the run before the roll-back, or with it.
"""

from collections.abc import Sequence

from prefect.logging import get_run_logger

from embodyflow.config import RunConfig
from embodyflow.config.changed_values import value_of, with_values
from embodyflow.config.health_checks import rolling_back
from embodyflow.errors import HealthError
from embodyflow.health.examination import Alarm
from embodyflow.orchestration.run.iterations.nodes import Run
from embodyflow.record.ledger import Ledger


class RollBackNeeded(Exception):
    """An alarm asks for a roll-back, which begins once nothing of the run is in flight.

    Attributes:
        alarm: The alarm.
    """

    def __init__(self, alarm: Alarm) -> None:
        super().__init__(str(alarm))
        self.alarm = alarm


async def roll_back(run: Run, alarm: Alarm) -> None:
    """Record the roll-back that an alarm asks for. The run is then to be opened again, as a resumed one.

    Args:
        run: Run without iterations in flight.
        alarm: The alarm.

    Raises:
        HealthError: ``health.roll_back.max_times`` roll-backs did not help.
    """
    settings, done = run.config.health.roll_back, run.stages.ledger.roll_backs()
    if len(done) >= settings.max_times:
        raise HealthError(f"{alarm}; health.roll_back.max_times={settings.max_times} roll-backs did not help")
    await run.stages.drain()
    committed = run.folder.checkpoints.committed()
    back = iterations_back(alarm.iteration, settings.iterations, [(each.iteration, each.facts["to"]) for each in done])
    to = target_of(committed, alarm.iteration, back, run.config.rollout.max_staleness)
    values = changed_values(run.config, alarm.detector)
    await run.stages.record("roll_back", alarm.iteration, {"detector": alarm.detector, "to": to, "values": values})
    shown = ", ".join(f"{key}={value:.4g}" for key, value in values.items())
    get_run_logger().warning("roll-back %d: returns to iteration %d with %s", len(done) + 1, to, shown)


def changed_values(config: RunConfig, detector: str) -> dict[str, float]:
    """Return the values that a detector's roll-back gives to keys, from those that the run has now."""
    sections = {key.rpartition(".")[2]: section for key, section in rolling_back(config.health)}
    return {key: value_of(config, key) * factor for key, factor in sections[detector].changes.items()}


def with_roll_backs(config: RunConfig, ledger: Ledger) -> RunConfig:
    """Return the configuration with the values that the roll-backs of a run have given to keys."""
    for line in ledger.roll_backs():
        config = with_values(config, line.facts["values"])
    return config


def iterations_back(found: int, iterations: int, earlier: Sequence[tuple[int, int]]) -> int:
    """Return how many newest iterations a roll-back discards.

    They are ``iterations``. If the finding comes no later than the one that the newest roll-back was for, the commit
    that it returned to may be damaged already: then the run goes as far again before that commit.

    Args:
        found: Iteration with the finding.
        iterations: Number of newest iterations to discard.
        earlier: Iteration with the finding, and the one that was returned to, of each earlier roll-back.
    """
    if earlier and found <= earlier[-1][0]:
        return found - earlier[-1][1] + iterations
    return iterations


def target_of(committed: Sequence[int], found: int, iterations: int, max_staleness: int) -> int:
    """Return the iteration that a roll-back returns to.

    It is the one before the newest ``iterations``. If an earlier roll-back or a damaged checkpoint has left no such
    commit, it is the nearest one before it, else the nearest after it; else the start of the run.

    Args:
        committed: Iterations with a checkpoint, in order.
        found: Iteration with the finding.
        iterations: Number of newest iterations to discard.
        max_staleness: How many older versions the rollouts after a commit need.
    """
    wanted = max(found - iterations, 0)
    usable = [each for each in committed if 0 < each < found and _has_versions(each, committed, max_staleness)]
    before, after = ([each for each in usable if (each <= wanted) is side] for side in (True, False))
    return 0 if wanted == 0 else max(before, default=min(after, default=0))


def _has_versions(iteration: int, committed: Sequence[int], max_staleness: int) -> bool:
    return set(committed).issuperset(range(max(iteration - max_staleness, 0), iteration + 1))

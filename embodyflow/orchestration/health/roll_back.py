"""Roll-backs: a run discards its newest iterations and goes on from an earlier commit with changed keys.

The line in the ledger is the roll-back. It is written once nothing of the run is in flight any more. All that follows
is what every resumed run does: it starts its workers with the changed keys, removes what the line made void
(:func:`~embodyflow.orchestration.run.recovery.finish_roll_back`), and restores the commit. So a process that is killed
at any moment leaves the run before the roll-back, or with it.
"""

from prefect.logging import get_run_logger

from embodyflow.config import RunConfig
from embodyflow.config.changed_values import value_of, with_values
from embodyflow.config.health_checks import rolling_back
from embodyflow.errors import HealthError
from embodyflow.health.examination import Alarm
from embodyflow.health.roll_back_plan import Done, target_of, wanted_commit
from embodyflow.orchestration.run.iterations.nodes import Run
from embodyflow.record.ledger import Ledger

RATE = "trainer.learning_rate"


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
    earlier = roll_backs_of(run.stages.ledger)
    wanted = wanted_commit(alarm.finding, alarm.iteration, settings.iterations, earlier)
    to = target_of(committed, wanted, alarm.iteration, run.config.rollout.max_staleness)
    values = changed_values(run.config, alarm)
    finding = {"metric": alarm.finding.metric, "threshold": alarm.finding.threshold}
    facts = {"detector": alarm.detector, "to": to, "values": values, **finding}
    await run.stages.record("roll_back", alarm.iteration, facts)
    shown = ", ".join(f"{key}={value:.4g}" for key, value in values.items())
    get_run_logger().warning("roll-back %d: returns to iteration %d with %s", len(done) + 1, to, shown)


def changed_values(config: RunConfig, alarm: Alarm) -> dict[str, float]:
    """Return the values that an alarm's roll-back gives to keys, from those that the run has now."""
    sections = {key.rpartition(".")[2]: section for key, section in rolling_back(config.health)}
    factors = dict(sections[alarm.detector].changes)
    if RATE in factors and alarm.finding.rate_factor is not None:
        factors[RATE] = min(factors[RATE], alarm.finding.rate_factor)
    return {key: value_of(config, key) * factor for key, factor in factors.items()}


def roll_backs_of(ledger: Ledger) -> list[Done]:
    """Return the roll-backs of a run so far."""
    lines = [(each.iteration, each.facts) for each in ledger.roll_backs()]
    return [
        Done(found, facts["to"], facts["detector"], facts.get("metric", ""), facts.get("threshold", 0.0))
        for found, facts in lines
    ]


def with_roll_backs(config: RunConfig, ledger: Ledger) -> RunConfig:
    """Return the configuration with the values that the roll-backs of a run have given to keys."""
    for line in ledger.roll_backs():
        config = with_values(config, line.facts["values"])
    return config

"""The examination of a run after an iteration: what its detectors find that they did not find before."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from embodyflow.health.detector_registry import DETECTORS
from embodyflow.health.history import Finding, History, Record, history_at
from embodyflow.health.roll_back_plan import Done, is_on_probation
from embodyflow.health.settings import DetectorConfig, HealthConfig
from embodyflow.references import resolve

NAN = "nan"
STRENGTH = ("notify", "roll_back", "pause", "cancel")
"""Actions from the weakest to the strongest."""


@dataclass(frozen=True)
class Watch:
    """A detector that is on.

    Attributes:
        function: ``"module:function"`` of the detector.
        section: Its section of the configuration.
        action: Consequence of a finding.
        timed: Whether its findings may depend on timing. Of a user's own detector that is only excluded where it sees
            no times, before a roll-back.
    """

    function: str
    section: object
    action: str
    timed: bool

    def section_for(self, is_strict: bool) -> object:
        """Return the section with the thresholds that hold on probation, or the usual ones."""
        return self.section.on_probation() if is_strict and isinstance(self.section, DetectorConfig) else self.section


@dataclass(frozen=True)
class Alarm:
    """A finding, with the detector and the action that the configuration gives it.

    Attributes:
        detector: Name of the detector.
        action: Consequence of the finding.
        iteration: Iteration in which it was found.
        finding: The finding.
        timed: Whether it depends on timing.
    """

    detector: str
    action: str
    iteration: int
    finding: Finding
    timed: bool = False

    @property
    def metric(self) -> str:
        """Name of the metric that shows the alarm: the value that was found."""
        return f"perf/health/{self.detector}" if self.timed else f"health/{self.detector}"

    def facts(self) -> dict[str, Any]:
        """Return the alarm as a line of the ledger and as the payload of an event."""
        return {"detector": self.detector, "action": self.action, "timed": self.timed, **asdict(self.finding)}

    @classmethod
    def of_facts(cls, iteration: int, facts: Mapping[str, Any]) -> "Alarm":
        """Return the alarm of a line of the ledger."""
        finding = Finding(**{each.name: facts[each.name] for each in fields(Finding) if each.name in facts})
        return cls(facts["detector"], facts["action"], iteration, finding, facts["timed"])

    def __str__(self) -> str:
        """Return the alarm in one line."""
        return f"health.{self.detector}: in iteration {self.iteration} {self.finding.text}"


def watches(health: HealthConfig) -> dict[str, Watch]:
    """Return the detectors that are on, by name."""
    found = {}
    for name, detector in DETECTORS.items():
        section = getattr(health, name)
        if section.action is not None:
            found[name] = Watch(detector.function, section, section.action, detector.timed)
    for name, own in health.own.items():
        if own.action is not None:
            found[name] = Watch(own.function, own, own.action, timed=own.action != "roll_back")
    return found


def reads_history(health: HealthConfig) -> bool:
    """Return True if a detector that is on compares an iteration with earlier ones."""
    return not watches(health).keys() <= {NAN}


def examine(
    health: HealthConfig, records: Sequence[Record], iteration: int, earlier: Sequence[Done] = ()
) -> list[Alarm]:
    """Return an alarm for each detector that finds something in an iteration and found nothing in the one before.

    Args:
        health: Section ``health`` of the configuration.
        records: Lines of ``metrics.jsonl``, up to the iteration or further.
        iteration: Index of the iteration.
        earlier: The run's roll-backs so far; the thresholds of the detector of the newest one
            are stricter for some iterations.

    Raises:
        Exception: A detector of the user's own raised it.
    """
    alarms = []
    on = watches(health)
    known = {each.metric: each.threshold for each in earlier}
    now, before = (
        {
            kind: history_at(records, each, timed=kind, thresholds=known)
            for kind in {watch.timed for watch in on.values()}
        }
        for each in (iteration, iteration - 1)
    )
    may_return = len(earlier) < health.roll_back.max_times  # a strict threshold ends no run
    is_strict = may_return and is_on_probation(iteration, health.roll_back.iterations, earlier)
    for name, watch in on.items():
        section = watch.section_for(is_strict and earlier[-1].detector == name)
        finding = _find(watch, section, now[watch.timed])
        if finding is not None and _find(watch, section, before[watch.timed]) is None:
            alarms.append(Alarm(name, watch.action, iteration, finding, watch.timed))
    return alarms


def strongest(alarms: Sequence[Alarm]) -> Alarm | None:
    """Return the alarm that is acted on, the first one with the strongest action; ``None`` without alarms.

    Signs of training come first: they are causes of what rollouts and results show.
    """
    return max(alarms, key=lambda alarm: STRENGTH.index(alarm.action), default=None)


def _find(watch: Watch, section: object, history: History) -> Finding | None:
    found: Finding | None = resolve(watch.function)(history, section) if history.iterations else None
    return found

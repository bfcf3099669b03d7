"""A run in one process whose detectors of health act, as those of a flow do.

Detectors, the choice among several alarms, changed keys and the commit that a roll-back returns to are the flow's own
functions; only what executes them differs. Nothing survives the process.
"""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.control.in_process import InProcessRun
from benchmarks.operations.planted_collapses import Fault
from embodyflow.config.changed_values import with_values
from embodyflow.data.metrics import as_metrics, merge_metrics
from embodyflow.graph import Node
from embodyflow.health.examination import Alarm, examine, strongest
from embodyflow.health.history import Finding, Record
from embodyflow.health.roll_back_plan import Done, due, target_of, wanted_commit
from embodyflow.orchestration.evaluation.evaluation import MODES, evaluation_metrics
from embodyflow.orchestration.health.roll_back import changed_values
from embodyflow.types import Batch, NodeOutput
from tasks import evaluate_policy


class WatchedRun(InProcessRun):
    """A run that does what its section ``health`` says, with one fault at most.

    Args:
        words: Overrides of the configuration.
        folder: Folder for its checkpoints, one for each iteration.
        fault: Spoils rows; ``None`` spoils nothing.
        begins: First iteration that the fault spoils.
    """

    def __init__(self, words: Sequence[str], folder: Path, fault: Fault | None = None, begins: int = 0) -> None:
        super().__init__(words)
        self._folder, self._fault, self._begins = folder, fault, begins
        self._spoiled, self._failed = 0, False
        """Number of iterations that the fault has spoiled, those that a roll-back discarded included; and whether the
        newest iteration failed."""
        self.records: list[dict[str, Any]] = []
        self.alarms: list[Alarm] = []
        self.roll_backs: list[Done] = []

    def begin(self) -> None:
        """Start from the warm start."""
        folder = self._folder / "0"
        if folder.exists():
            self._restore(0)
        else:
            self.warm_start()
            self._save(0)
            self._evaluate(0)

    def go_on_from(self, other: Path, records: Sequence[Record], iteration: int) -> None:
        """Start from the commit of another run with the same configuration up to it.

        Args:
            other: Folder of the other run's checkpoints.
            records: Its metrics.
            iteration: Iteration of the commit.
        """
        for index in range(iteration + 1):
            shutil.copytree(other / str(index), self._folder / str(index))
        self.records = [dict(each) for each in records if each["iteration"] <= iteration]
        self._restore(iteration)

    def to_the_end(self) -> str | None:
        """Train to the last iteration; return ``None``, or why the run ended before."""
        index = self._version + 1
        waits: Alarm | None = None
        settings, last = self.config.health.roll_back, self.config.iterations
        while index <= last:
            alarms = self._play(index)
            self.alarms += alarms
            alarm = strongest(alarms)
            if alarm is not None and alarm.action == "cancel":
                return str(alarm)
            if alarm is not None and alarm.action == "roll_back" and (waits is None or self._failed):
                waits = alarm
            if waits is None or not self._is_due(waits, index):
                index += 1
                continue
            if len(self.roll_backs) == settings.max_times:
                return str(waits)
            index, waits = self._roll_back(waits) + 1, None
        return None

    def _is_due(self, alarm: Alarm, index: int) -> bool:
        """Return True if an alarm's roll-back waits no longer; with NaN or after the last iteration none can."""
        at = due(alarm.iteration, self.config.health.roll_back.iterations, self.roll_backs)
        return self._failed or index >= min(at, int(self.config.iterations))

    def run_node(self, node: Node, rows: Batch | None, iteration: int) -> NodeOutput:
        """Run a node; spoil its rows if the fault lasts and they are the first to have the fault's column."""
        had = set(rows.keys()) if rows is not None else set()  # a node may write into its rows
        output, fault = super().run_node(node, rows, iteration), self._fault
        if fault is None or output.batch is None or fault.column not in set(output.batch.keys()) - had:
            return output
        has_begun = iteration >= self._begins or self._spoiled > 0
        if not has_begun or self._spoiled == fault.iterations:
            return output
        self._spoiled += 1
        return fault.spoil(output)

    def _play(self, index: int) -> list[Alarm]:
        """Run an iteration, record and commit it; return its alarms."""
        started, self._failed = time.perf_counter(), False
        try:
            metrics = self.iterate(index)
        except FloatingPointError as error:
            self._failed, action = True, self.config.health.nan.action
            return [Alarm("nan", action or "cancel", index, Finding("", float("nan"), 0.0, str(error)))]
        seconds = time.perf_counter() - started
        self.records.append({"iteration": index, "weights_digest": "", **metrics, "perf/iteration_seconds": seconds})
        self._save(index)
        alarms = examine(self.config.health, self.records, index, self.roll_backs)
        if self.config.evaluates_after(index):
            self._evaluate(index)
        return alarms

    def _roll_back(self, alarm: Alarm) -> int:
        """Return to an earlier commit with changed keys; return its iteration."""
        first, *others = sorted(int(each.name) for each in self._folder.iterdir())
        committed = [first, *others[-self.config.kept_checkpoints :]]  # as many as a flow keeps
        iterations = self.config.health.roll_back.iterations
        wanted = wanted_commit(alarm.finding, alarm.iteration, iterations, self.roll_backs)
        to = target_of(committed, wanted, alarm.iteration, self.config.rollout.max_staleness)
        self.config = with_values(self.config, changed_values(self.config, alarm))
        shown = alarm.finding.metric, alarm.finding.threshold
        self.roll_backs.append(Done(alarm.iteration, to, alarm.detector, *shown))
        for index in others:
            if index > to:
                shutil.rmtree(self._folder / str(index))
        self.records = [each for each in self.records if each["iteration"] <= to]
        self.trainer = self.start_trainer()
        self._restore(to)
        return to

    def _save(self, index: int) -> None:
        """Write a checkpoint; those that a flow removes stay for the planted runs that begin at them."""
        (self._folder / str(index)).mkdir(parents=True)
        self.trainer.save(str(self._folder / str(index)))

    def _restore(self, index: int) -> None:
        self.trainer.load_reference(str(self._folder / "0"))
        self.trainer.load(str(self._folder / str(index)))
        self._publish(index)

    def _evaluate(self, index: int) -> None:
        """Record an evaluation as a flow does, if the job has episodes to evaluate."""
        if self.config.evaluation is None or not hasattr(self.rollout, "evaluation_episodes"):
            return
        call = self._call(index, "evaluate", 0)
        outputs = [evaluate_policy(None, {"mode": mode}, worker=self.rollout, call=call) for mode in MODES]
        metrics = evaluation_metrics(merge_metrics(as_metrics(each.metrics) for each in outputs))
        self.records.append({"iteration": index, **metrics})

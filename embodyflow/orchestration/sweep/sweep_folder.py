"""The folder of a sweep, ``<run_root>/<sweep_id>/``: its runs, their states and their output.

::

    sweep.json         grid, and the words, state, seconds and reason of each run
    leaderboard.json   the ranked runs
    leaderboard.md     the same as a table
    logs/<run_id>.log  output of a run's process

The runs have folders of their own beside it.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.request import IfExists
from embodyflow.orchestration.sweep.grid import difference
from embodyflow.orchestration.sweep.sweep_request import Combination, Plan
from embodyflow.process.files.durable_files import make_folder, write_durably
from embodyflow.process.files.file_lock import hold_lock, holder
from embodyflow.record.run_folder import RunFolder

SWEEP_FILE = "sweep.json"


class RunState(StrEnum):
    """The state of a run in a sweep."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class RunRecord:
    """A run as the sweep's file has it.

    Attributes:
        words: Words of its command line, without its name.
        state: Its state.
        seconds: Time of its process, over all attempts that the sweep saw end.
        reason: Why it failed; empty otherwise.
    """

    words: tuple[str, ...]
    state: RunState = RunState.WAITING
    seconds: float = 0.0
    reason: str = ""


class SweepFolder:
    """Reads and writes the folder of a sweep.

    Args:
        run_root: Folder that holds the runs' folders.
        sweep_id: Name of the sweep.

    Attributes:
        path: The folder.
        records: Record of each run by its name; :meth:`read` fills it.
    """

    def __init__(self, run_root: str, sweep_id: str) -> None:
        self._run_root, self._sweep_id = Path(run_root), sweep_id
        self.path = self._run_root / sweep_id
        self.records: dict[str, RunRecord] = {}

    def exists(self) -> bool:
        """Return True if the sweep has begun."""
        return (self.path / SWEEP_FILE).is_file()

    def run(self, run_id: str) -> RunFolder:
        """Return the folder of a run."""
        return RunFolder(self._run_root / run_id)

    def log(self, run_id: str) -> Path:
        """Return the file with the output of a run's process."""
        return self.path / "logs" / f"{run_id}.log"

    def check(self, plan: Plan, if_exists: IfExists) -> Plan:
        """Return the plan with the names that its runs have in a sweep that exists. Writes nothing.

        Raises:
            ConfigError: The sweep or one of its runs exists and is not to be continued, another process is at work on
                it, or it has another grid.
        """
        if (pid := holder(self.path / ".lock")) is not None:
            raise ConfigError(self._refusal(str(pid)))
        if not self.exists():
            return self._new(plan)
        if if_exists == "refuse":
            raise ConfigError(
                f"sweep_id={self._sweep_id}: {self.path} exists; if_exists=resume continues it, or choose another"
            )
        kept = json.loads((self.path / SWEEP_FILE).read_text())
        if changed := difference({key: tuple(values) for key, values in kept["grid"].items()}, plan.grid):
            raise ConfigError(
                f"sweep_id={self._sweep_id}: a sweep keeps its grid; {'; '.join(changed)}; give that, or choose "
                "another sweep_id"
            )
        names = {frozenset(each["words"]): run_id for run_id, each in kept["runs"].items()}
        renamed = [_renamed(each, names[frozenset(each.words)]) for each in plan.combinations]
        return replace(plan, combinations=sorted(renamed, key=lambda each: each.run_id))

    def _new(self, plan: Plan) -> Plan:
        for path in (self.path, *(self.run(each.run_id).path for each in plan.combinations)):
            if (path / "config.yaml").exists():
                raise ConfigError(f"sweep_id={self._sweep_id}: {path} is a run of its own; choose another sweep_id")
        return plan

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder if it is missing, and lock it against all other processes.

        Raises:
            ConfigError: Another process holds the lock, or the folder cannot be written.
        """
        try:
            make_folder(self.path / "logs")
        except OSError as error:
            raise ConfigError(f"run_root={self._run_root}: {self.path} cannot be created: {error.strerror}") from error
        with hold_lock(self.path / ".lock", self._refusal):
            yield

    def open(self, plan: Plan) -> None:
        """Read the records of the runs, as :meth:`read`, and write them."""
        self.read(plan)
        self._write(plan)

    def read(self, plan: Plan) -> None:
        """Read the records of a sweep that exists, or make those of a new one.

        A run is finished if its folder says so. One that was at work when the sweep was killed is stopped.

        Args:
            plan: Plan that :meth:`check` has returned.
        """
        found = {}
        if self.exists():
            kept = json.loads((self.path / SWEEP_FILE).read_text())["runs"]
            found = {run_id: _record(each) for run_id, each in kept.items()}
        for each in plan.combinations:
            record = found.get(each.run_id, RunRecord(tuple(each.words)))
            is_finished = self.run(each.run_id).summary_path.exists()
            if is_finished:
                record = replace(record, state=RunState.FINISHED, reason="")
            elif record.state is RunState.RUNNING:
                record = replace(record, state=RunState.STOPPED)
            elif record.state is RunState.FINISHED:  # somebody has removed its folder
                record = replace(record, state=RunState.WAITING)
            self.records[each.run_id] = record

    def update(self, plan: Plan, run_id: str, state: RunState, seconds: float = 0.0, reason: str = "") -> None:
        """Record the state of a run, durably.

        Args:
            plan: Plan of the sweep.
            run_id: Name of the run.
            state: Its state.
            seconds: Time to add to that of its earlier attempts.
            reason: Why it failed.
        """
        before = self.records[run_id]
        self.records[run_id] = replace(before, state=state, seconds=before.seconds + seconds, reason=reason)
        self._write(plan)

    def _write(self, plan: Plan) -> None:
        runs = {run_id: asdict(record) for run_id, record in self.records.items()}
        grid = {key: list(values) for key, values in plan.grid.items()}
        content = {"sweep_id": self._sweep_id, "grid": grid, "runs": runs}
        write_durably(self.path / SWEEP_FILE, json.dumps(content, indent=2) + "\n")

    def _refusal(self, pid: str) -> str:
        return f"sweep_id={self._sweep_id}: process {pid} is at work on this sweep; wait for its end"


def _renamed(combination: Combination, run_id: str) -> Combination:
    config = combination.config.model_copy(update={"run_id": run_id})
    return replace(combination, run_id=run_id, config=config)


def _record(values: dict[str, object]) -> RunRecord:
    words, state, seconds, reason = (values[name] for name in ("words", "state", "seconds", "reason"))
    assert isinstance(words, list) and isinstance(seconds, int | float)
    return RunRecord(tuple(words), RunState(str(state)), float(seconds), str(reason))

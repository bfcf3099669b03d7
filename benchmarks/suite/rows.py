"""Rows of the suite's table: an entry runs, and each of its cases gives a row."""

import importlib.metadata
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import psutil

from benchmarks.report import machine
from benchmarks.suite.entries import Entry
from benchmarks.suite.figures import Figures, spread
from embodyflow.stack.processes import start_process, stop_processes

ROOT = Path(__file__).resolve().parents[2]
GRACE = 5.0
"""Seconds, within the limit of an entry, that its processes have to end by themselves."""
Status = Literal["measured", "too noisy", "skipped", "failed"]
BAD: tuple[Status, ...] = ("too noisy", "failed")
"""The suite ends with exit code 1 if a row has one of these."""


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        script: Name of the entry.
        title: Title of the entry.
        status: Only a row that is ``measured`` has a ratio.
        note: Why there is no ratio; empty in a measured row.
        max_spread: Largest spread of the ratio at which it is reported.
        measured: UTC date of the measurement.
        machine: Processor, number of CPUs, platform and version of Python.
        versions: Versions of the entry's packages, without those that are missing.
        seconds: Seconds that the entry took.
        case: Name of the case; empty if the entry gave no figures.
        peer: Name of the peer.
        unit: Unit of the figures.
        ours: Median of our samples.
        theirs: Median of the peer's samples.
        ratio: Median over the rounds of how many times as fast as the peer ours is.
        spread: Interquartile range of the ratios by round, divided by their median.
        rounds: Number of rounds.
    """

    script: str
    title: str
    status: Status
    note: str
    max_spread: float
    measured: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    seconds: float
    case: str = ""
    peer: str = ""
    unit: str = ""
    ours: float | None = None
    theirs: float | None = None
    ratio: float | None = None
    spread: float | None = None
    rounds: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the row for a JSON document."""
        return asdict(self)


class ScriptError(Exception):
    """A script of a benchmark ended with an error, or took too long."""


def rows_of(entry: Entry, folder: Path) -> list[Row]:
    """Run an entry and return its rows; a missing package or variable, or an error, gives one row with the reason.

    Args:
        entry: Comparison to run.
        folder: Folder for the script's output and its log.
    """
    versions, missing = installed(entry.packages)
    missing += [f"the variable {name}" for name in entry.variables if not os.environ.get(name)]
    facts: dict[str, Any] = {
        "script": entry.name,
        "title": entry.title,
        "max_spread": entry.max_spread,
        "measured": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions,
    }
    if missing:
        return [Row(**facts, status="skipped", note=f"needs {', '.join(missing)}", seconds=0.0)]
    started = time.perf_counter()
    try:
        figures = entry.read(run_script(entry, folder))
        if not figures:
            raise ValueError("the result file has no case")
    except (ScriptError, LookupError, TypeError, ValueError) as error:
        note = str(error) if isinstance(error, ScriptError) else f"{type(error).__name__}: {error}"
        return [Row(**facts, status="failed", note=note, seconds=_since(started))]
    facts["seconds"] = _since(started)
    return [row_of(each, facts) for each in figures]


def row_of(figures: Figures, facts: Mapping[str, Any]) -> Row:
    """Return the row of a case; it has a ratio only if the ratio's spread is within the limit.

    Args:
        figures: Samples of the case.
        facts: Fields that all rows of the entry share.
    """
    ratios = figures.ratios()
    found, limit = spread(ratios), facts["max_spread"]
    noisy = found > limit
    return Row(
        **facts,
        status="too noisy" if noisy else "measured",
        note=f"the ratio's spread is {found:.0%}, its limit {limit:.0%}" if noisy else "",
        case=figures.case,
        peer=figures.peer,
        unit=figures.unit,
        ours=None if noisy else statistics.median(figures.ours),
        theirs=None if noisy else statistics.median(figures.theirs),
        ratio=None if noisy else statistics.median(ratios),
        spread=found,
        rounds=len(ratios),
    )


def run_script(entry: Entry, folder: Path) -> Any:
    """Run the script of an entry in a process of its own; return the document that it writes.

    Raises:
        ScriptError: It ended with an error, wrote no JSON, or took longer than its limit.
    """
    output, log = folder / f"{entry.name}.json", folder / f"{entry.name}.log"
    for old in (output, log):
        old.unlink(missing_ok=True)
    command = [sys.executable, "-m", f"benchmarks.{entry.script}", *entry.arguments, "--output", str(output)]
    python_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    where = os.path.relpath(log, ROOT)  # results are committed, so they name no folder of this machine
    process = start_process(command, log=log, env={**os.environ, "PYTHONPATH": python_path}, cwd=ROOT)
    try:
        code = process.wait(entry.max_seconds - GRACE)
    except psutil.TimeoutExpired:
        raise ScriptError(f"took longer than {entry.max_seconds} s; see {where}") from None
    finally:
        stop_processes([process], grace=GRACE)
    if code != 0:
        raise ScriptError(f"exit code {code}: {last_line(log)}; see {where}")
    if not output.exists():
        raise ScriptError(f"wrote no results; see {where}")
    return json.loads(output.read_text())


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty, where a Python error is."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def installed(packages: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the versions of the packages that are installed, and the names of those that are missing."""
    versions, missing = {}, []
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            missing.append(package)
    return versions, missing


def _since(started: float) -> float:
    return round(time.perf_counter() - started, 1)

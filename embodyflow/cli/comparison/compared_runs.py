"""Runs to compare, in groups that differ only by seed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodyflow.cli.run_folders.found_runs import find_run
from embodyflow.errors import ConfigError
from embodyflow.record.metric_names import MEASURES, common_measure
from embodyflow.record.metrics_log import records_in
from embodyflow.record.run_folder import RunFolder

Record = Mapping[str, Any]

NOT_COMPARED = ("run_id", "run_root", "seed", "tracking.")
"""Beginnings of the keys that do not change what a run learns, and the seed."""


@dataclass(frozen=True)
class ComparedRun:
    """A run as its folder shows it.

    Attributes:
        name: Name of the run.
        settings: Configuration, by dotted key, without :data:`NOT_COMPARED`.
        records: Lines of its metrics.
        seed: Seed of the run.
    """

    name: str
    settings: Mapping[str, str]
    records: Sequence[Record]
    seed: int

    @property
    def seconds(self) -> float | None:
        """Time of all iterations with their commits; ``None`` if a line lacks it, as one that the ledger restored."""
        commits = [record for record in self.records if "weights_digest" in record and record["iteration"] > 0]
        if not all("perf/iteration_seconds" in record for record in commits):
            return None
        names = ("perf/iteration_seconds", "perf/commit_seconds")
        return float(sum(record.get(name, 0.0) for record in self.records for name in names))

    @property
    def iterations(self) -> int:
        """Last iteration."""
        return max((int(record["iteration"]) for record in self.records), default=0)

    def values(self, measure: str) -> list[Record]:
        """Return the lines that have a metric."""
        return [record for record in self.records if record.get(measure) is not None]


@dataclass(frozen=True)
class Group:
    """Runs that differ only by seed.

    Attributes:
        letter: Short name in tables.
        runs: The runs, at least one.
    """

    letter: str
    runs: Sequence[ComparedRun]

    @property
    def settings(self) -> Mapping[str, str]:
        """Configuration of each of them."""
        return self.runs[0].settings


def read_runs(run_root: Path, names: Sequence[str]) -> list[ComparedRun]:
    """Return the named runs.

    Raises:
        ConfigError: There is no such run, it is an evaluation, it has no metrics yet, or it is named twice.
    """
    folders = [find_run(run_root, name) for name in names]
    for index, folder in enumerate(folders):
        if any(folder.path.samefile(other.path) for other in folders[:index]):
            raise ConfigError(f"{names[index]}: is named twice")
    return [_read(name, folder) for name, folder in zip(names, folders, strict=True)]


def _read(name: str, folder: RunFolder) -> ComparedRun:
    if folder.is_evaluation():
        raise ConfigError(f"{name}: is an evaluation; allowed are training runs")
    content = folder.metrics.path.read_bytes() if folder.metrics.path.exists() else b""
    records = list(records_in(content.split(b"\n")))
    if not records:
        raise ConfigError(f"{name}: {folder.metrics.path} has no metrics yet")
    config = folder.config()
    return ComparedRun(folder.path.name, dict(_flat(config)), records, int(config["seed"]))


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{name}.")
        elif not name.startswith(NOT_COMPARED):
            flat[name] = value if isinstance(value, str) else json.dumps(value)
    return flat


def grouped(runs: Sequence[ComparedRun]) -> list[Group]:
    """Return the runs in groups that differ only by seed, in the order of their first runs."""
    groups: dict[str, list[ComparedRun]] = {}
    for run in runs:
        groups.setdefault(json.dumps(run.settings, sort_keys=True), []).append(run)
    return [Group(_letter(index), each) for index, each in enumerate(groups.values())]


def _letter(index: int) -> str:
    """Return A to Z, then AA, AB and so on."""
    return ("" if index < 26 else _letter(index // 26 - 1)) + chr(ord("A") + index % 26)


def differences(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Return the value of each key that differs, by group; ``–`` for a key that a group lacks."""
    keys = sorted(set().union(*(group.settings for group in groups)))
    values = {key: [group.settings.get(key, "–") for group in groups] for key in keys}
    return {key: each for key, each in values.items() if len(set(each)) > 1}


def measure_of(runs: Sequence[ComparedRun]) -> str:
    """Return the metric to compare the runs by.

    Raises:
        ConfigError: No metric is in all of them.
    """
    if (measure := common_measure([run.records for run in runs])) is not None:
        return measure
    raise ConfigError(f"no metric to compare is in all of these runs; allowed are {', '.join(MEASURES)}")

"""Metrics of a run: one JSON object per line, each on disk before the run continues.

The ledger holds the same numbers, except those under ``perf/``. A resumed run compares both and rebuilds lines
that were edited or cut.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from embodyflow.errors import DamageError
from embodyflow.process.files.durable_files import flush, whole_lines, write_durably
from embodyflow.record.ledger import Ledger

Record: TypeAlias = dict[str, Any]
LineKey: TypeAlias = tuple[int, str]
"""Iteration and kind of a line: ``commit`` and ``evaluation``, which the ledger holds, ``warm_start`` or ``other``."""

EVALUATED = "eval/"
"""Beginning of metrics that every evaluation has, and no other line."""

WARM_STARTED = "sft/reached"
"""Metric of the line that says how the warm start ended."""


_BLOCK = 64 * 2**10
"""Bytes at the end of the file that hold the newest lines of most runs."""


class MetricsLog:
    """Reads ``metrics.jsonl`` and appends to it.

    Args:
        path: The file, created with the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: Record) -> None:
        """Append a line and wait until it is on disk."""
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        flush(self.path.parent)

    def read(self) -> list[Record]:
        """Return all lines; one that a killed process left half written does not count.

        Raises:
            DamageError: A line is damaged; the message names it.
        """
        if not self.path.exists():
            return []
        lines = whole_lines(self.path.read_bytes())
        records = list(records_in(lines))
        if len(records) < len(lines):
            number = next(number for number, line in enumerate(lines, start=1) if not list(records_in([line])))
            raise DamageError(f"{self.path}: line {number} is damaged; resume={self.path.parent.name} rebuilds it")
        return records

    def newest(self, number: int) -> list[Record]:
        """Return the last lines, at most ``number`` of them, without reading a long file from its start."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            size, length = file.seek(0, os.SEEK_END), _BLOCK
            while True:
                file.seek(max(size - length, 0))
                lines = whole_lines(file.read())
                if length >= size:
                    break
                lines = lines[1:]  # the first one may begin before
                if len(lines) >= number:
                    break
                length *= 2
        return [json.loads(line) for line in lines[-number:]]

    def evaluation(self, iteration: int) -> Record | None:
        """Return the line of the evaluation after an iteration; ``None`` before it."""
        return next((each for each in self.read() if _key(each) == (iteration, "evaluation")), None)

    def restore(self, iteration: int, ledger: Ledger) -> list[int]:
        """Remove the lines of later iterations, which a resumed run repeats, and rebuild lines that were changed.

        Args:
            iteration: Last iteration whose lines stay.
            ledger: Ledger of the run.

        Returns:
            Iterations whose lines differed from the ledger. Their ``perf/`` metrics are lost with them.
        """
        kept, differing = self._compare(iteration, ledger)
        write_durably(self.path, "".join(json.dumps(record) + "\n" for record in kept))
        return differing

    def differing(self, iteration: int, ledger: Ledger) -> list[int]:
        """Return the iterations, up to the given one, whose lines differ from the ledger."""
        return self._compare(iteration, ledger)[1]

    def _compare(self, last: int, ledger: Ledger) -> tuple[list[Record], list[int]]:
        """Return the right lines up to an iteration, and the iterations that have other lines in the file."""
        recorded = {key: line for key, line in _recorded(ledger).items() if key[0] <= last}
        kept: dict[LineKey, list[Record]] = {}
        differing = set()
        content = self.path.read_bytes() if self.path.exists() else b""
        for record in records_in(whole_lines(content)):
            iteration, kind = key = _key(record)
            if iteration > last:
                continue
            if key in recorded:
                stays = key not in kept and _lasting(record) == _lasting(recorded[key])
            else:  # otherwise it is a commit without its digest
                stays = kind != "other" or (iteration, "commit") not in recorded
            if stays:
                kept.setdefault(key, []).append(record)
            else:
                differing.add(iteration)
        for key in recorded.keys() - kept.keys():
            kept[key] = [recorded[key]]
            differing.add(key[0])
        order = sorted(kept) if differing else kept
        return [record for key in order for record in kept[key]], sorted(differing)


def records_in(lines: Iterable[bytes]) -> Iterator[Record]:
    """Yield the records of intact lines. A resumed run rebuilds the damaged ones from the ledger."""
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("iteration"), int):
            yield record


def lasting_metrics(metrics: Mapping[str, Any]) -> Record:
    """Return the metrics that do not depend on time, which a repeated iteration has again."""
    return {name: value for name, value in metrics.items() if not name.startswith("perf/")}


def _recorded(ledger: Ledger) -> dict[LineKey, Record]:
    """Return the lines that the ledger holds; commits of earlier versions of this program lack metrics.

    An evaluation counts for the weights that it was made with: an iteration that is repeated may have others.
    """
    lines: dict[LineKey, Record] = {}
    for iteration in {entry.iteration for entry in ledger.entries}:
        commit, evaluation = (ledger.newest(kind, iteration) for kind in ("commit", "evaluation"))
        if commit is None:
            continue
        digests: Record = {name: commit[name] for name in ("weights_digest", "digests") if name in commit}
        if "metrics" in commit:
            lines[iteration, "commit"] = {"iteration": iteration, **digests, **commit["metrics"]}
        if evaluation is not None and evaluation["weights_digest"] == commit["weights_digest"]:
            lines[iteration, "evaluation"] = {"iteration": iteration, **evaluation["metrics"]}
    return lines


def _key(record: Record) -> LineKey:
    if any(name.startswith(EVALUATED) for name in record):
        kind = "evaluation"
    elif "weights_digest" in record:
        kind = "commit"
    else:
        kind = "warm_start" if WARM_STARTED in record else "other"
    return record["iteration"], kind


def _lasting(record: Record) -> str:
    return json.dumps(lasting_metrics(record), sort_keys=True)  # as text, NaN equals NaN

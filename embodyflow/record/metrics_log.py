"""Metrics of a run: one JSON object per line, each on disk before the run continues."""

import json
import os
from pathlib import Path
from typing import Any

from embodyflow.process.durable_files import flush, whole_lines, write_durably


class MetricsLog:
    """Reads ``metrics.jsonl`` and appends to it.

    Args:
        path: The file, created with the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: dict[str, Any]) -> None:
        """Append a line and wait until it is on disk."""
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        flush(self.path.parent)

    def read(self) -> list[dict[str, Any]]:
        """Return all lines; one that a killed process left half written does not count."""
        if not self.path.exists():
            return []
        return [json.loads(line) for line in whole_lines(self.path.read_bytes())]

    def drop_after(self, iteration: int) -> None:
        """Remove the lines of later iterations: a resumed run repeats them."""
        kept = [json.dumps(record) + "\n" for record in self.read() if record["iteration"] <= iteration]
        write_durably(self.path, "".join(kept))

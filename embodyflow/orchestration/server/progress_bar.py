"""The progress of a run: a bar on a terminal, a line per iteration elsewhere."""

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from embodyflow.record.metrics_log import records_in
from embodyflow.record.run_folder import RunFolder

SHOWN = {
    "rollout/success_rate": "success",
    "rollout/reward": "reward",
    "groups/mixed_fraction": "mixed groups",
    "policy/kl_to_reference": "KL",
    "policy/entropy": "entropy",
    "perf/env_steps_per_second": "steps/s",
}
"""Metrics in the bar, with their labels."""

STAGES = {
    "start": "starting workers",
    "sft": "warm start on demonstrations",
    "evaluate": "evaluating",
    "train": "training",
    "done": "done",
}


class RunProgress:
    """Follows ``status.json`` and ``metrics.jsonl`` in a run's folder.

    Args:
        run_dir: Folder of the run, which need not exist yet.
        console: Console to draw on.
    """

    def __init__(self, run_dir: Path, console: Console) -> None:
        self._run_dir = run_dir
        self._console = console
        self._file, self._offset = 0, 0  # inode of the file that was read, and bytes read
        self._new_records()  # skips the lines of a run that is resumed
        self._shown = max(RunFolder(run_dir).checkpoints.committed(), default=-1)  # later iterations are replayed
        self._progress = Progress(
            TextColumn("{task.description:<28}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("submitting", total=None, numbers="")
        self._stage = ""

    def __enter__(self) -> "RunProgress":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self) -> None:
        """Show changes since the last call."""
        self._show_stage()
        for record in self._new_records():
            if record["iteration"] > self._shown:
                self._show_record(record)
                self._shown = record["iteration"]

    def _show_stage(self) -> None:
        try:
            status = json.loads((self._run_dir / "status.json").read_text())
        except FileNotFoundError:
            return
        stage = STAGES.get(status["stage"], status["stage"])
        self._progress.update(self._task, description=stage, total=status["iterations"])
        if stage != self._stage and not self._console.is_terminal:
            self._console.print(stage)
        self._stage = stage

    def _show_record(self, record: dict[str, Any]) -> None:
        numbers = "  ".join(f"{label} {record[name]:.3g}" for name, label in SHOWN.items() if name in record)
        self._progress.update(self._task, completed=record["iteration"], numbers=numbers)
        if numbers and not self._console.is_terminal:
            self._console.print(f"iteration {record['iteration']}  {numbers}", soft_wrap=True)

    def _new_records(self) -> list[dict[str, Any]]:
        """Return the records since the last call, or all of them if the file was replaced."""
        try:
            with (self._run_dir / "metrics.jsonl").open("rb") as file:
                facts = os.fstat(file.fileno())
                if facts.st_ino != self._file or facts.st_size < self._offset:  # uncommitted lines were dropped
                    self._file, self._offset = facts.st_ino, 0
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return []
        complete = content[: content.rfind(b"\n") + 1]  # the next call reads the rest of an incomplete line
        self._offset += len(complete)
        return list(records_in(complete.split(b"\n")))

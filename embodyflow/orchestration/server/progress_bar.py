"""What a run tells the terminal while it runs: one bar on a terminal, a line per iteration elsewhere."""

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from embodyflow.record.run_folder import RunFolder

SHOWN = {
    "rollout/success_rate": "success",
    "rollout/reward": "reward",
    "groups/mixed_fraction": "mixed groups",
    "policy/kl_to_reference": "KL",
    "policy/entropy": "entropy",
    "perf/env_steps_per_second": "steps/s",
}
"""Metric names and how they are called in the bar."""

STAGES = {
    "start": "starting workers",
    "sft": "warm start on demonstrations",
    "evaluate": "evaluating",
    "train": "training",
    "done": "done",
}


class RunProgress:
    """Follows a run's folder: ``status.json`` and the lines added to ``metrics.jsonl``.

    Args:
        run_dir: the folder; it need not exist yet.
        console: where to draw.
    """

    def __init__(self, run_dir: Path, console: Console) -> None:
        self._run_dir = run_dir
        self._console = console
        self._file, self._offset = 0, 0  # the inode of what was read, and how far
        self._new_records()  # a resumed run: only what is new
        self._shown = max(RunFolder(run_dir).checkpoints.committed(), default=-1)  # what comes after is done (again)
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
        """Show what is new since the last call."""
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
        """Return the records that were added; all of them where another file has taken the place of the one read."""
        try:
            with (self._run_dir / "metrics.jsonl").open("rb") as file:
                facts = os.fstat(file.fileno())
                if facts.st_ino != self._file or facts.st_size < self._offset:  # what was not committed is dropped
                    self._file, self._offset = facts.st_ino, 0
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return []
        complete = content[: content.rfind(b"\n") + 1]  # the rest of a line comes with the next call
        self._offset += len(complete)
        return [json.loads(line) for line in complete.splitlines()]

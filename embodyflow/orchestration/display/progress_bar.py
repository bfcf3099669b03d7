"""The progress of a run: one line per iteration, and on a terminal a bar below them."""

import json
import os
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from embodyflow.record.metrics_log import records_in
from embodyflow.record.progress_line import ProgressLine, alarm_line, progress_line
from embodyflow.record.run_folder import RunFolder

STAGES = {
    "start": "starting",
    "sft": "warm start",
    "evaluate": "evaluating",
    "train": "training",
    "paused": "paused",
    "done": "done",
}
COLORS = {"iteration": "cyan", "evaluated": "green", "warm start": "magenta", "alarm": "red"}
"""Colour of the beginning of each kind of line."""

STAGE_WIDTH, LEAST_BAR, WIDEST_BAR = 10, 6, 24
MEASURED_ITERATIONS = 10
"""Number of newest iterations whose speed predicts the time left."""


class RunProgress:
    """Follows ``status.json`` and ``metrics.jsonl`` in a run's folder.

    Args:
        run_dir: Folder of the run, which need not exist yet.
        console: Console to draw on. One that is no terminal gets plain lines without control codes.
        headline: Metrics of an iteration to show, with their labels.
        iterations: Number of iterations of the run.
    """

    def __init__(self, run_dir: Path, console: Console, headline: Mapping[str, str], iterations: int) -> None:
        self._run_dir, self._console = run_dir, console
        self._headline, self._iterations = headline, iterations
        self._file, self._offset = 0, 0  # inode of the file that was read, and bytes read
        earlier = [progress_line(record, headline, iterations) for record in self._new_records()]
        last = max(RunFolder(run_dir).checkpoints.committed(), default=-1)  # later iterations are replayed
        evaluated = [line.iteration for line in earlier if line is not None and line.kind == "evaluated"]
        self._shown = {"warm start": last, "iteration": last, "alarm": last}
        self._shown["evaluated"] = max((each for each in evaluated if each <= last), default=-1)
        self._stage, self._newest = "submitting", None if last < 0 else ProgressLine("", last, iterations, ())
        self._finished: deque[tuple[float, int]] = deque(maxlen=MEASURED_ITERATIONS)
        self._live = Live(get_renderable=self._bar, console=console, auto_refresh=False, transient=True)
        self._draws = console.is_terminal and not console.is_dumb_terminal

    def __enter__(self) -> "RunProgress":
        if self._draws:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._draws:
            self._live.stop()

    def update(self) -> None:
        """Show changes since the last call."""
        self._show_stage()
        for record in self._new_records():
            lines = (progress_line(record, self._headline, self._iterations), alarm_line(record, self._iterations))
            for line in lines:
                if line is not None and line.iteration > self._shown[line.kind]:
                    self._show_line(line)
        if self._draws:
            self._live.refresh()

    def _show_stage(self) -> None:
        try:
            status = json.loads((self._run_dir / "status.json").read_text())
        except FileNotFoundError:
            return
        stage = STAGES.get(status["stage"], status["stage"])
        if stage != self._stage and not self._draws:
            self._console.print(stage)
        self._stage = stage

    def _show_line(self, line: ProgressLine) -> None:
        self._shown[line.kind] = line.iteration
        if line.kind == "iteration":
            self._newest = line
            self._finished.append((time.monotonic(), line.iteration))
        text = Text(str(line))
        text.stylize(COLORS[line.kind], 0, len(line.kind))
        for label, _ in line.numbers:
            text.highlight_words([f"  {label} "], "dim")
        self._console.print(text, soft_wrap=True)

    def _bar(self) -> RenderableType:
        """Return the bar for the console's present width: what does not fit is left out, the last number first."""
        newest = self._newest or ProgressLine("", 0, self._iterations, ())
        parts = [newest.count, *([left] if (left := self._time_left()) else [])]
        room = self._console.width - 1 - STAGE_WIDTH - 2 - LEAST_BAR - sum(2 + len(part) for part in parts)
        for label, value in newest.numbers:
            if 2 + len(part := f"{label} {value}") > room:
                break
            parts.append(part)
            room -= 2 + len(part)
        grid = Table.grid(padding=(0, 2, 0, 0))
        bar = ProgressBar(self._iterations, newest.iteration, width=min(LEAST_BAR + max(room, 0), WIDEST_BAR))
        grid.add_row(f"{self._stage:<{STAGE_WIDTH}}", bar, *(Text(part, no_wrap=True) for part in parts))
        return grid

    def _time_left(self) -> str:
        """Return the time that the remaining iterations take at the speed of the newest ones; empty if unknown."""
        if len(self._finished) < 2:
            return ""
        (began, first), (ended, last) = self._finished[0], self._finished[-1]
        each = (ended - began) / (last - first)
        # An iteration that takes longer than the others leaves the time of those after it.
        left = each * (self._iterations - last) - min(time.monotonic() - ended, each)
        return f"{_short(left)} left"

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


def _short(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

"""``embodyflow runs`` and ``embodyflow logs``: the runs in a folder, and the log of one."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from embodyflow.cli.plain_text import in_one_line, plain
from embodyflow.cli.run_folders.found_runs import find_run
from embodyflow.cli.tables import as_it_is, table_console
from embodyflow.errors import ConfigError
from embodyflow.record.metrics_log import records_in
from embodyflow.record.run_folder import RunFolder

FOLLOW_SECONDS = 0.5
"""Interval at which a log is read for new lines."""

STYLES = {"running": "cyan", "finished": "green", "stopped": "yellow", "not started": "dim", "damaged": "red"}
"""Colour of each state on a terminal."""

UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


@dataclass(frozen=True)
class ListedRun:
    """The entry of a run in the list.

    Attributes:
        state: ``running``; ``finished``; ``stopped``, which can be resumed; ``not started``, without a commit; or
            ``damaged``, if one of its files cannot be read.
        experiment: Experiment of the run.
        iteration: Last iteration in the metrics, and the number of all; or ``evaluation``.
        success: Newest success rate: the greedy one of an evaluation, or else the one of training; ``None`` without.
        age: Seconds since the run was created.
        origin: Run and iteration that it branched off, such as ``push@40``; empty for others.
    """

    state: str
    experiment: str
    iteration: str
    success: float | None
    age: float
    origin: str = ""


def show_runs(run_root: Path) -> int:
    """Print the runs in a folder, oldest first; return the exit code.

    Raises:
        ConfigError: There is no such folder.
    """
    if not run_root.is_dir():
        raise ConfigError(f"--run-root={run_root}: no such folder; `embodyflow run` makes it with the first run")
    found = ((_created(path), path) for path in run_root.glob("[!.]*"))
    folders = sorted((when, path) for when, path in found if when is not None)
    runs = [(path, _listed_or_damaged(RunFolder(path), when)) for when, path in folders]
    shows_origin = any(run.origin for _, run in runs)
    columns: list[Column | str] = ["state", "experiment", Column("iteration", justify="right"), "success", "age"]
    table = Table(*columns, *(["from"] if shows_origin else []), box=None)
    table.add_column("folder", overflow="fold")
    for path, run in runs:
        success = "" if run.success is None else f"{run.success:.3f}"
        state = Text(run.state, STYLES[run.state])
        origin = [as_it_is(run.origin)] if shows_origin else []
        shown = as_it_is(run.experiment), run.iteration, success, short_age(run.age)
        table.add_row(state, *shown, *origin, as_it_is(path))
    table_console().print(table)
    return 0


def _listed_or_damaged(folder: RunFolder, created: float) -> ListedRun:
    """Return the entry of a run; a run with a damaged file hides no others, and its damage is said on stderr."""
    try:
        return listed(folder, created)
    except ConfigError as error:
        print(in_one_line(str(error)), file=sys.stderr)
    except OSError as error:  # such as a file of another user, or a folder in its place
        print(in_one_line(f"{error.filename or folder.path}: {error.strerror}"), file=sys.stderr)
    except (LookupError, TypeError, ValueError) as error:  # JSON that no run has written
        print(in_one_line(f"{folder.path}: is damaged: {type(error).__name__}: {error}"), file=sys.stderr)
    return ListedRun("damaged", "", "", None, time.time() - created)


def listed(folder: RunFolder, created: float) -> ListedRun:
    """Return the entry of a run in the list.

    Args:
        folder: Folder of the run.
        created: When the run was created, in seconds since the epoch.

    Raises:
        ConfigError: A file of the run is damaged.
        OSError: A file cannot be read.
        LookupError, TypeError, ValueError: A file has other values than a run writes.
    """
    config = folder.config()
    content = folder.metrics.path.read_bytes() if folder.metrics.path.exists() else b""
    records = list(records_in(content.split(b"\n")))
    last = max((record["iteration"] for record in records), default=0)
    return ListedRun(
        state=_state(folder),
        experiment=config["experiment"],
        iteration="evaluation" if folder.is_evaluation() else f"{last}/{config['iterations']}",
        success=_success(folder, records),
        age=time.time() - created,
        origin="{run}@{iteration}".format_map(config["branch"]) if config.get("branch") else "",
    )


def show_log(run_root: Path, run: str, *, follow: bool) -> int:
    """Print the log of a run, with ``follow`` until the run ends; return the exit code.

    Args:
        run_root: Folder that holds the runs' folders.
        run: Name of the run, or its folder.
        follow: Whether to wait for further lines while the run is at work.

    Raises:
        ConfigError: There is no such run, or it has no log.
    """
    folder = find_run(run_root, run)
    if not folder.log_path.exists():
        raise ConfigError(f"{run}: {folder.path} has no run.log; runs of earlier versions have none")
    with folder.log_path.open(encoding="utf-8", errors="replace") as log:
        while True:
            is_running = follow and folder.worker_pid() is not None  # asked before the last lines are read
            while text := log.read(65536):
                sys.stdout.write(plain(text))
            sys.stdout.flush()
            if not is_running:
                return 0
            time.sleep(FOLLOW_SECONDS)


def short_age(seconds: float) -> str:
    """Format a duration with its largest unit, such as ``3 h``."""
    for unit, size in UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "0 s"


def _state(folder: RunFolder) -> str:
    if folder.worker_pid() is not None:
        return "running"
    if folder.summary_path.exists() or folder.evaluation() is not None:
        return "finished"
    return "stopped" if folder.checkpoints.committed() else "not started"


def _success(folder: RunFolder, records: list[dict[str, Any]]) -> float | None:
    result = folder.evaluation()
    if result is not None and "mean_success_rate" in result:
        return float(result["mean_success_rate"]["greedy"])
    for record in reversed(records):
        for name in ("eval/greedy_success_rate", "rollout/success_rate"):
            if name in record:
                return float(record[name])
    return None


def _created(path: Path) -> float | None:
    """Return when a run was created, in seconds since the epoch; ``None`` if there is no run."""
    config = path / "config.yaml"
    try:
        return config.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return config.lstat().st_mtime if config.is_symlink() else None  # a link that leads nowhere is a run's damage
    except OSError:  # links in a circle, or a folder of another user
        return path.lstat().st_mtime

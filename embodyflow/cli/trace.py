"""``embodyflow trace``: one file from the traces of a run's processes."""

from pathlib import Path

from embodyflow.cli.found_runs import find_run
from embodyflow.errors import ConfigError
from embodyflow.record.trace_file import write_trace


def show_trace(run_root: Path, run: str) -> int:
    """Write ``trace.json`` to a run's folder and print its path; return the exit code.

    Args:
        run_root: Folder that holds the runs' folders.
        run: Name of the run, or its folder. The run may be at work, or have been killed.

    Raises:
        ConfigError: There is no such run, or it has no trace.
    """
    folder = find_run(run_root, run)
    try:
        num_spans = write_trace(folder.trace_folder, folder.trace_path)
    except FileNotFoundError as error:
        raise ConfigError(f"{run}: has no trace; tracking.trace=true records one") from error
    print(f"{num_spans} spans, {folder.trace_path.stat().st_size / 1e6:.1f} MB")
    print("https://ui.perfetto.dev and chrome://tracing open it")
    print(f"trace={folder.trace_path}")
    return 0

"""``embodyflow trace``: one file from the traces of a run's processes."""

from pathlib import Path

from embodyflow.cli.run_folders.found_runs import find_run
from embodyflow.config.cluster import check_endpoint
from embodyflow.errors import ConfigError
from embodyflow.record.otlp.run_spans import RunSpans
from embodyflow.record.otlp.sender import BATCH, CollectorError, SpanSender, check_installed
from embodyflow.record.run_folder import RunFolder
from embodyflow.record.trace_file import write_trace


def show_trace(run_root: Path, run: str, otlp: str | None) -> int:
    """Write ``trace.json`` to a run's folder and print its path; return the exit code.

    Args:
        run_root: Folder that holds the runs' folders.
        run: Name of the run, or its folder. The run may be at work, or have been killed.
        otlp: Address of a collector of OpenTelemetry to send the spans to; ``None`` sends them nowhere.

    Raises:
        ConfigError: There is no such run, it has no trace, or the collector does not take it.
    """
    folder = find_run(run_root, run)
    try:
        num_spans = write_trace(folder.trace_folder, folder.trace_path)
    except FileNotFoundError as error:
        raise ConfigError(f"{run}: has no trace; tracking.trace=true records one") from error
    print(f"{num_spans} spans, {folder.trace_path.stat().st_size / 1e6:.1f} MB")
    print("https://ui.perfetto.dev and chrome://tracing open it")
    print(f"trace={folder.trace_path}")
    if otlp is not None:
        _send(folder, otlp)
    return 0


def _send(folder: RunFolder, endpoint: str) -> None:
    """Send the spans of a run to a collector; those of a run at work that have no end yet are left out."""
    try:
        check_endpoint(endpoint)
    except ValueError as error:
        raise ConfigError(f"--otlp: {error}") from error
    option = f"--otlp {endpoint}"
    check_installed(option)
    spans = RunSpans(folder.trace_folder).read(is_over=folder.worker_pid() is None)
    sender = SpanSender(endpoint)
    try:
        for start in range(0, len(spans), BATCH):
            sender.send(spans[start : start + BATCH])
    except CollectorError as error:
        raise ConfigError(f"{option}: {error}") from error
    finally:
        sender.close()
    traces = dict.fromkeys(f"{span.trace_id:032x}" for span in spans)
    print(f"{len(spans)} spans sent; trace ids: {', '.join(traces)}")

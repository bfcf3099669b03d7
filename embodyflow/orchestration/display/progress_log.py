"""Metrics of a run in its log, a line for each iteration and evaluation."""

from collections.abc import Mapping
from typing import Any

from prefect.logging import get_run_logger

from embodyflow.orchestration.run.iterations.nodes import Run
from embodyflow.record.progress_line import progress_line


def log_progress(run: Run, index: int, metrics: Mapping[str, Any]) -> None:
    """Log a line of metrics in a few words, which is all that ``prefect deployment run --watch`` shows of it.

    An iteration that compiled has a line that says how long it took.
    """
    if seconds := metrics.get("perf/train_compile_seconds"):
        get_run_logger().info("the trainer compiled its steps in %.1f s, or loaded them from the cache", seconds)
    record = {**metrics, "iteration": index}
    if (line := progress_line(record, run.config.headline, run.config.iterations)) is not None:
        get_run_logger().info("%s", line)

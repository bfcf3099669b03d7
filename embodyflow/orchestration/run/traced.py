"""The trace of a run from its start to its end."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from prefect.runtime import flow_run

from embodyflow.config import RunConfig
from embodyflow.process.tracing import recording, span
from embodyflow.record.otlp.live import spans_sent
from embodyflow.record.run_folder import RunFolder
from embodyflow.record.trace_file import write_trace


@contextmanager
def traced(folder: RunFolder, config: RunConfig) -> Iterator[None]:
    """Record the block and the processes that it starts, if ``tracking.trace`` asks for it; then join their files.

    With ``tracking.otlp`` the spans also go to a collector.
    """
    if not config.tracking.trace:
        yield
        return
    otlp = config.tracking.otlp
    facts = {"run": str(config.run_id), "flow_run": str(flow_run.id)}
    try:
        with (
            nullcontext() if otlp is None else spans_sent(folder, otlp.endpoint),
            recording(folder.trace_folder, "flow"),
            span("run", "run", track="run", **facts),
        ):
            yield
    finally:
        if folder.is_present():
            write_trace(folder.trace_folder, folder.trace_path)

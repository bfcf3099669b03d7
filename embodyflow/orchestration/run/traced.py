"""The trace of a run from its start to its end."""

from collections.abc import Iterator
from contextlib import contextmanager

from embodyflow.config import RunConfig
from embodyflow.process.tracing import recording, span
from embodyflow.record.run_folder import RunFolder
from embodyflow.record.trace_file import write_trace


@contextmanager
def traced(folder: RunFolder, config: RunConfig) -> Iterator[None]:
    """Record the block and the processes that it starts, if ``tracking.trace`` asks for it; then join their files."""
    if not config.tracking.trace:
        yield
        return
    try:
        with recording(folder.trace_folder, "flow"), span("run", "run", track="run", run=str(config.run_id)):
            yield
    finally:
        if folder.is_present():
            write_trace(folder.trace_folder, folder.trace_path)

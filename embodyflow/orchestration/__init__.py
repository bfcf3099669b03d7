"""The lifecycle of a run as Prefect flows: validate, start workers, iterate, commit, stop."""

import os
import sys

from embodyflow.orchestration.server.settings import BATCHED_WRITES, NO_TELEMETRY, PATIENCE

# Prefect reads its settings when it is first imported, and hands them to the server that it starts for a flow that
# has none. What the user has set stays.
for _name, _value in (NO_TELEMETRY | BATCHED_WRITES | PATIENCE).items():
    os.environ.setdefault(_name, _value)
if (
    sys.stderr.isatty()
):  # embodyflow.orchestration.request.command_line draws a progress bar there; the log is in the UI
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "WARNING")

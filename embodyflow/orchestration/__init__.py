"""The lifecycle of a run as Prefect flows: validate, start workers, iterate, commit, stop."""

import os
import sys
from pathlib import Path

from embodyflow.orchestration.server.credentials import withhold_our_password
from embodyflow.orchestration.server.prefect_home import home_in_place_of
from embodyflow.orchestration.server.settings import BATCHED_WRITES, NO_TELEMETRY, STARTUP_TIMEOUT

# Prefect reads its settings when it is first imported, and passes them to the server that it starts for a flow without
# one. Settings that the user has made win.
for _name, _value in (NO_TELEMETRY | BATCHED_WRITES | STARTUP_TIMEOUT).items():
    os.environ.setdefault(_name, _value)
os.environ.update(home_in_place_of(os.environ))
withhold_our_password(os.environ, Path())
if sys.stderr.isatty():  # a progress bar occupies the terminal (request.command_line); the log is in the UI
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "WARNING")

"""Prefect settings for the local stack and for flows that run without a server."""

import os
import socket
import sys
from urllib.parse import quote

NO_TELEMETRY = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

# SQLite allows one writer. By default the server writes each event as it arrives, so flow runs meet a locked database
# and their client sleeps for two seconds each time. Batches avoid that (benchmarks/orchestration/orchestration.py).
BATCHED_WRITES = {
    f"{prefix}_{name}": value
    for prefix in ("PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER", "PREFECT_SERVER_SERVICES_EVENT_PERSISTER")
    for name, value in {"BATCH_SIZE": "1000", "READ_BATCH_SIZE": "1000", "FLUSH_INTERVAL": "5"}.items()
}

STREAMED_LOGS = {f"PREFECT_SERVER_LOGS_STREAM_{name}_ENABLED": "true" for name in ("OUT", "PUBLISHING")}
"""Settings with which `prefect deployment run --watch` shows a run's log; by default it shows events alone."""

# A flow without a server starts one. On a busy machine with a new database that exceeds Prefect's default of 20 s.
STARTUP_TIMEOUT = {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120"}

MAX_RUNS = 4
"""How many times a flow run is run, the first one included. One that crashes every time needs a person."""

HEARTBEAT_SECONDS = 30
"""Interval of the heartbeats of flow runs, the shortest that Prefect has."""

SUBFLOW_HEARTBEAT = "embodyflow.subflow-run.heartbeat"
"""Name of the event that tells the server that a subflow run's process is alive."""

HEALTH_EVENT = "embodyflow.health"
"""Beginning of the names of the events about a run's health; the detector's name follows after a dot."""

SIGN_IN_PATH = "/sign-in"
"""Page of our servers that signs a browser in to the UI: ``/sign-in#<auth string>``."""


def sign_in_url(ui_url: str, auth_string: str) -> str:
    """Return the address that opens the UI of our server with its password in the fragment, which stays in the browser.

    Args:
        ui_url: Address of the UI, such as ``http://127.0.0.1:4200``.
        auth_string: ``user:password`` of the server.
    """
    return f"{ui_url}{SIGN_IN_PATH}#{quote(auth_string, safe=':')}"


def access_settings(auth_string: str, port: int) -> dict[str, str]:
    """Return the settings that make our server ask for a password and let only the pages of its own UI read answers.

    Args:
        auth_string: ``user:password`` that every client must present.
        port: Port of the server.
    """
    origins = os.environ.get("PREFECT_SERVER_CORS_ALLOWED_ORIGINS")  # the user's choice stands
    return {
        "PREFECT_SERVER_API_AUTH_STRING": auth_string,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": origins or f"http://127.0.0.1:{port},http://localhost:{port}",
    }


def server_command(listener: socket.socket) -> list[str]:
    """Return the command that runs our Prefect server on a socket, whose descriptor the process must inherit."""
    return [sys.executable, "-m", "embodyflow.orchestration.server.guarded_server", str(listener.fileno())]

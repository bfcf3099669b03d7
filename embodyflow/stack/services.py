"""The programs of a stack: their commands and their environment variables."""

import hashlib
import os
import secrets
import socket
import sys
from collections.abc import Mapping

from embodyflow.orchestration.server.api_address import check_api_url
from embodyflow.orchestration.server.credentials import API_KEY, AUTH_STRING, SERVER_AUTH_STRING, new_auth_string
from embodyflow.orchestration.server.settings import (
    BATCHED_WRITES,
    HEARTBEAT_SECONDS,
    NO_TELEMETRY,
    STREAMED_LOGS,
)
from embodyflow.orchestration.watchers.orphans import KEEPS_MARKS
from embodyflow.process.files.private_files import write_private
from embodyflow.stack.processes import STACK_VARIABLE
from embodyflow.stack.stack_folder import StackFolder, StackState

WORK_POOL = "embodyflow"

RAY_STARTED = "Ray runtime started"
"""Text that Ray prints once its node is up. Its port answers earlier, when the node may yet fail."""

WORKER_STARTED = "started!"
"""Text that Prefect's worker prints once it can run flows. Its first heartbeat comes earlier, when it may yet fail."""

# An iteration adds some 175 kB to the database, two thirds of it events. Automations and the UI's feed read events
# within the hour. The record of a run is its folder, so the database may forget.
RETENTION = {
    "PREFECT_SERVER_EVENTS_RETENTION_PERIOD": "P1D",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": str(30 * 24 * 3600),
}
"""How long our server keeps events and finished flow runs in its own database."""


def environment(folder: StackFolder, state: StackState) -> dict[str, str]:
    """Return the environment of a process of the stack: addresses, settings and the credentials of our server.

    The user's own server may need the profile in their home; our server's home is in the project.
    """
    users, home = dict(os.environ), {}
    if state.owns_server:
        home = {"PREFECT_HOME": str(folder.prefect_home), AUTH_STRING: folder.auth_string()}
        users.pop(API_KEY, None)  # it is for Prefect Cloud, not for our server
    return {
        **users,
        **NO_TELEMETRY,
        **BATCHED_WRITES,
        **STREAMED_LOGS,
        **home,
        **KEEPS_MARKS,
        STACK_VARIABLE: str(folder.root),
        "PREFECT_API_URL": state.api_url,
        "RAY_ADDRESS": state.ray_address,
        # The longest time that a submitted run waits for the worker. The default is 10. Each query writes to the
        # database; at 1 second the server's own retries on SQLite collide endlessly.
        "PREFECT_WORKER_QUERY_SECONDS": "4",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
        "PREFECT_CLI_PROMPT": "false",
        "PYTHONUNBUFFERED": "1",
    }


def database_environment(folder: StackFolder) -> dict[str, str]:
    """Return the variables that make our server keep its data in the stack's own file and forget old data.

    They name the file although it is Prefect's default, so that we never clean up another database.
    """
    url = f"sqlite+aiosqlite:///{folder.prefect_home}/prefect.db"
    kept = {name: os.environ.get(name, value) for name, value in RETENTION.items()}
    return kept | {"PREFECT_SERVER_DATABASE_CONNECTION_URL": url}


def create_auth_string(folder: StackFolder) -> None:
    """Create the password of our Prefect server, unless ``PREFECT_SERVER_API_AUTH_STRING`` chooses it."""
    folder.prepare()
    write_private(folder.prefect_auth, os.environ.get(SERVER_AUTH_STRING) or new_auth_string())


def ray_environment(folder: StackFolder) -> dict[str, str]:
    """Create the secret of our Ray cluster and return the environment variables of the cluster and its drivers."""
    folder.prepare()
    write_private(folder.ray_token, secrets.token_hex(32))
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder.ray_token),
        # Ray replaces 127.0.0.1 by this machine's address and listens on every interface. With this switch, its
        # default on macOS and Windows, it stays on the loopback interface.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_DEDUP_LOGS": "0",
    }


def ray_command(port: int, client_port: int, temp_dir: str) -> list[str]:
    """Return the command that runs a Ray head node in the foreground."""
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--node-ip-address=127.0.0.1", f"--port={port}", f"--temp-dir={temp_dir}"),
        *("--disable-usage-stats", "--include-dashboard=false", "--no-monitor"),
        f"--num-cpus={num_cores()}",
        f"--ray-client-server-port={client_port}",
        *("--dashboard-agent-listen-port=0", "--metrics-export-port=0"),
    ]


def worker_name(folder: StackFolder) -> str:
    """Return the name of the project's Prefect worker on this machine, the same for each of its stacks."""
    digest = hashlib.sha256(str(folder.root).encode()).hexdigest()
    return f"{socket.gethostname()}-{digest[:8]}"


def worker_command(name: str) -> list[str]:
    """Return the command that runs a Prefect worker for our work pool."""
    return [*_prefect("worker", "start"), f"--pool={WORK_POOL}", "--type=process", f"--name={name}"]


def deploy_command(folder: StackFolder) -> list[str]:
    """Return the command that registers all deployments of the project with the server."""
    return [*_prefect("deploy"), "--all", "--prefect-file", str(folder.prefect_yaml)]


def run_command(deployment: str, parameters: str) -> list[str]:
    """Return the command that submits a flow run and waits for its end.

    Args:
        deployment: Name of the deployment, ``<flow>/<name>``.
        parameters: Parameters of the flow as JSON.
    """
    return [*_prefect("deployment", "run"), deployment, "--params", parameters, "--watch"]


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def attached(environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return the Prefect API and the Ray address that the user sets; None for a service that the stack starts.

    Raises:
        ConfigError: The address of the Prefect API holds a secret.
    """
    if api_url := environ.get("PREFECT_API_URL"):
        check_api_url(api_url)
    return api_url or None, environ.get("RAY_ADDRESS") or None


def _prefect(*words: str) -> list[str]:
    return [sys.executable, "-m", "prefect", *words]

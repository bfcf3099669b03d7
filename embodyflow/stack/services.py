"""The programs a stack is made of: their commands and their settings."""

import os
import secrets
import sys
from collections.abc import Mapping

from embodyflow.orchestration.server.settings import BATCHED_WRITES, NO_TELEMETRY
from embodyflow.stack.processes import STACK_VARIABLE
from embodyflow.stack.stack_folder import StackFolder

WORK_POOL = "embodyflow"

# An iteration is some 175 kB of the database, two thirds of it events, which are read within the hour: by
# automations, and by whoever looks at a run's feed. A run's record is its folder; the database may forget.
RETENTION = {
    "PREFECT_SERVER_EVENTS_RETENTION_PERIOD": "P1D",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": str(30 * 24 * 3600),
}
"""How long our server keeps events and, after their end, flow runs, in a database of its own."""


def environment(folder: StackFolder) -> dict[str, str]:
    """Return the environment of every process of the stack, addresses left out."""
    # The user's own server may need the profile in their home; ours has its home in the project.
    home = {} if os.environ.get("PREFECT_API_URL") else {"PREFECT_HOME": str(folder.prefect_home)}
    return {
        **os.environ,
        **NO_TELEMETRY,
        **BATCHED_WRITES,
        **home,
        STACK_VARIABLE: str(folder.root),
        # A run waits for its worker that long. The default is 10; each query writes to the database, and at 1 the
        # server's own retries collide on SQLite without end.
        "PREFECT_WORKER_QUERY_SECONDS": "4",
        "PREFECT_CLI_PROMPT": "false",
        "PYTHONUNBUFFERED": "1",
    }


def database_environment(folder: StackFolder) -> dict[str, str]:
    """Return what has our server keep its data in a file of the stack's, and forget what is old.

    The file is named although it is Prefect's default: that the database is ours to tidy up is then sure.
    """
    url = f"sqlite+aiosqlite:///{folder.prefect_home}/prefect.db"
    kept = {name: os.environ.get(name, value) for name, value in RETENTION.items()}
    return kept | {"PREFECT_SERVER_DATABASE_CONNECTION_URL": url}


def ray_environment(folder: StackFolder) -> dict[str, str]:
    """Return what our own Ray cluster and its drivers need in addition; makes the cluster's secret."""
    folder.private.mkdir(exist_ok=True)
    with open(os.open(folder.ray_token, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder.ray_token),
        # Ray takes 127.0.0.1 to mean "this machine's address" and listens on every interface. This switch,
        # its default on macOS and Windows, keeps it on the loopback.
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


def server_command(port: int) -> list[str]:
    """Return the command that runs a Prefect server in the foreground, for this machine only."""
    return [*_prefect("server", "start"), "--host=127.0.0.1", f"--port={port}", "--analytics-off"]


def worker_command(name: str) -> list[str]:
    """Return the command that runs a Prefect worker for our work pool."""
    return [*_prefect("worker", "start"), f"--pool={WORK_POOL}", "--type=process", f"--name={name}"]


def deploy_command(folder: StackFolder) -> list[str]:
    """Return the command that makes the server know all our deployments."""
    return [*_prefect("deploy"), "--all", "--prefect-file", str(folder.prefect_yaml)]


def run_command(deployment: str, parameters: str) -> list[str]:
    """Return the command that submits a flow run and waits for its end.

    Args:
        deployment: ``<flow>/<name>``.
        parameters: the flow's, as JSON.
    """
    return [*_prefect("deployment", "run"), deployment, "--params", parameters, "--watch"]


def num_cores() -> int:
    """Return the number of cores this process may use (not those a container hides from it)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def attached(environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return the Prefect API and the Ray address the user asks us to use; None for what we are to start."""
    return environ.get("PREFECT_API_URL") or None, environ.get("RAY_ADDRESS") or None


def _prefect(*words: str) -> list[str]:
    return [sys.executable, "-m", "prefect", *words]

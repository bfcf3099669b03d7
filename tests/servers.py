"""A Prefect server for tests."""

import os
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deployments.processes import free_port, start_process, stop_processes
from deployments.services import server_command
from flows.prefect_settings import BATCHED_WRITES, NO_TELEMETRY


@contextmanager
def prefect_server(folder: Path, port: int | None = None) -> Iterator[str]:
    """Run a server with its home in ``folder``; give the address of its API."""
    port = free_port(0) if port is None else port
    env = {**os.environ, **NO_TELEMETRY, **BATCHED_WRITES, "PREFECT_HOME": str(folder)}
    for name in ("PREFECT_API_URL", "PREFECT_API_DATABASE_CONNECTION_URL"):
        env.pop(name, None)
    process = start_process(server_command(port), log=folder / "server.log", env=env, cwd=folder)
    try:
        url = f"http://127.0.0.1:{port}/api"
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < deadline and process.is_running(), (folder / "server.log").read_text()
                time.sleep(0.2)
        yield url
    finally:
        stop_processes([process], grace=10)

"""A Prefect server that other machines reach, as `docs/how-to/use-a-prefect-server.md` starts one."""

import os
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from server_ports import server_port

from embodyflow.orchestration.server.settings import BATCHED_WRITES, NO_TELEMETRY
from embodyflow.stack.processes import start_process, stop_processes


@contextmanager
def prefect_server_at(address: str, folder: Path) -> Iterator[str]:
    """Run a server on an address of this machine; yield the address of its API.

    Args:
        address: IP address that it listens on.
        folder: Home of Prefect.
    """
    folder.mkdir(exist_ok=True)
    port, log = server_port(), folder / "server.log"
    env = {**os.environ, **NO_TELEMETRY, **BATCHED_WRITES, "PREFECT_HOME": str(folder)}
    env.pop("PREFECT_API_URL", None)
    words = (sys.executable, "-m", "prefect", "server", "start", f"--host={address}", f"--port={port}", "--no-ui")
    process = start_process(words, log=log, env=env, cwd=folder)
    url = f"http://{address}:{port}/api"
    deadline = time.monotonic() + 240
    try:
        while not _answers(url):
            has_ended = process.status() == psutil.STATUS_ZOMBIE
            assert time.monotonic() < deadline and not has_ended, log.read_text()
            time.sleep(0.2)
        yield url
    finally:
        stop_processes([process, *process.children(recursive=True)], grace=10)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/health", timeout=5).close()
    except OSError:
        return False
    return True

"""A Prefect server for tests."""

import os
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from server_ports import server_port

from embodyflow.orchestration.server.settings import BATCHED_WRITES, NO_TELEMETRY, access_settings, server_command
from embodyflow.process.ports import listen_on
from embodyflow.stack.processes import start_process, stop_processes


class PrefectServer:
    """A server with its home in a folder. A restarted server keeps its address.

    Args:
        folder: Home of Prefect.
        port: Port to listen on; the default is a free one.
        auth_string: Password, as ``user:password``; the default is none.
    """

    def __init__(self, folder: Path, port: int | None = None, auth_string: str | None = None) -> None:
        self._folder, self._port = folder, server_port() if port is None else port
        self._env = {**os.environ, **NO_TELEMETRY, **BATCHED_WRITES, "PREFECT_HOME": str(folder)}
        for name in ("PREFECT_API_URL", "PREFECT_API_DATABASE_CONNECTION_URL"):
            self._env.pop(name, None)
        if auth_string is not None:
            self._env |= access_settings(auth_string, self._port)
        self.url = f"http://127.0.0.1:{self._port}/api"
        self._env["PREFECT_SERVER_UI_API_URL"] = self.url  # otherwise the UI asks port 4200
        self.process: psutil.Process

    def start(self) -> None:
        """Start the server and wait until it answers."""
        log = self._folder / "server.log"
        with listen_on(self._port) as listener:
            assert listener.getsockname()[1] == self._port
            command, descriptors = server_command(listener), [listener.fileno()]
            self.process = start_process(command, log=log, env=self._env, cwd=self._folder, descriptors=descriptors)
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < deadline and self.process.is_running(), log.read_text()
                time.sleep(0.2)

    def problem(self) -> str | None:
        """Return why the server does not answer within half a minute, or None if it does."""
        try:
            urllib.request.urlopen(f"{self.url}/health", timeout=30).close()
        except OSError as error:
            log = (self._folder / "server.log").read_text()
            return f"the Prefect server at {self.url} does not answer ({error}): {log[-1000:]}"
        return None

    def stop(self) -> None:
        stop_processes([self.process], grace=10)


@contextmanager
def prefect_server(folder: Path, port: int | None = None, auth_string: str | None = None) -> Iterator[str]:
    """Run a server; yield the address of its API."""
    server = PrefectServer(folder, port, auth_string)
    try:
        server.start()
        yield server.url
    finally:
        server.stop()

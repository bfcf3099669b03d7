"""A Ray cluster that the runs of several tests share; starting one per run costs each of them seconds."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from server_ports import server_port
from support_path import SUPPORT_PATH

from embodyflow.process.ports import answers
from embodyflow.stack.processes import descendants, start_process, stop_processes
from embodyflow.stack.services import NO_TELEMETRY, ray_command, ray_environment
from embodyflow.stack.stack_folder import StackFolder

ROOT = Path(__file__).resolve().parents[3]


class RayHead:
    """A head node. A restarted one keeps its address and its secret.

    Args:
        folder: Folder for its log and its secret.
        prefix: Beginning of the command that starts it.
        settings: Further environment variables of the cluster.
    """

    def __init__(self, folder: Path, *, prefix: Sequence[str] = (), **settings: str) -> None:
        self._folder, self._prefix = folder, prefix
        self._port = server_port()
        self._address, secret = f"127.0.0.1:{self._port}", ray_environment(StackFolder(folder))
        self._env = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        self._env |= NO_TELEMETRY | secret | settings
        self._env["PYTHONPATH"] = SUPPORT_PATH  # workers have the environment of their cluster
        self.environment = secret | {"RAY_ADDRESS": self._address}
        self._sockets: str
        self._process: psutil.Process

    @property
    def _log(self) -> Path:
        return self._folder / "ray.log"

    def start(self) -> None:
        """Start the node and wait until it has started."""
        self._sockets = tempfile.mkdtemp(prefix="ef-ray-")  # a longer path breaks Ray's sockets
        command = [*self._prefix, *ray_command(self._port, server_port(), self._sockets)]
        self._log.unlink(missing_ok=True)
        self._process = start_process(command, log=self._log, env=self._env, cwd=self._folder)
        deadline = time.monotonic() + 120
        # The head's address answers before the node has started.
        while not (answers(self._address) and "Ray runtime started" in self._log.read_text()):
            assert time.monotonic() < deadline and self._process.is_running(), self._log.read_text()
            time.sleep(0.1)

    def problem(self) -> str | None:
        """Return the end of the node's log if the node does not answer."""
        if answers(self._address):
            return None
        return f"the Ray head at {self._address} does not answer: {self._log.read_text()[-1000:]}"

    def stop(self) -> None:
        """Stop the node and remove its sockets."""
        stop_processes([self._process, *descendants(self._process)], grace=10)
        shutil.rmtree(self._sockets, ignore_errors=True)


@contextmanager
def ray_head(folder: Path, *, prefix: Sequence[str] = (), **settings: str) -> Iterator[dict[str, str]]:
    """Run a :class:`RayHead`; yield the environment variables that connect a run to it."""
    head = RayHead(folder, prefix=prefix, **settings)
    try:
        head.start()
        yield head.environment
    finally:
        head.stop()

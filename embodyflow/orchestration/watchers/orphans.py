"""A watcher process that ends what a killed process would leave behind.

Ray ends its workers when the process that started them dies. But when a flow is killed (SIGKILL, out of memory),
Prefect leaves the server that it started for this flow running; and when the launcher of a stack is killed, some of
its processes outlive a SIGTERM. The watcher holds the read end of a pipe. When the watched process dies, the pipe
closes, and the watcher ends every process with the same mark in its environment. Before that it closes the flow run of
a flow's process on the server, which may be one of these processes.
"""

import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from embodyflow.orchestration.watchers.flow_run_closing import close_last
from embodyflow.orchestration.watchers.pipe import send, start_on_pipe

FLOW_VARIABLE = "EMBODYFLOW_FLOW_PROCESS"
KEEPS_MARKS = {"SPT_NOENV": "1"}
"""Variables of marked processes. Ray's agents name themselves by setproctitle, which else overwrites the mark."""


_flow_watchers: list["subprocess.Popen[bytes]"] = []


def start_flow_watcher() -> None:
    """Start the watcher of this process, which runs a flow without a stack."""
    os.environ.update({FLOW_VARIABLE: uuid.uuid4().hex, **KEEPS_MARKS})
    _flow_watchers.append(start_watcher(FLOW_VARIABLE, os.environ))


def has_flow_watcher() -> bool:
    """Return True if this process has a watcher."""
    return bool(_flow_watchers)


def tell_flow_watcher(line: str) -> bool:
    """Send the flow run that the watcher closes when this process ends; return False if this process has no watcher.

    Args:
        line: The flow run, as :meth:`~embodyflow.orchestration.watchers.flow_run_closing.WatchedFlowRun.line` gives it.
    """
    for watcher in _flow_watchers:
        send(watcher, line)
    return bool(_flow_watchers)


class Leftover(NamedTuple):
    """A file that a killed process leaves behind.

    Attributes:
        path: Path of the file.
        beginning: First characters of the file; one that begins otherwise is the user's and stays.
    """

    path: Path
    beginning: str

    def remove(self) -> None:
        """Remove the file, if it exists and is not the user's."""
        if self.path.exists() and self.path.read_bytes().startswith(self.beginning.encode()):
            self.path.unlink()


def start_watcher(variable: str, env: Mapping[str, str], leftover: Leftover | None = None) -> subprocess.Popen[bytes]:
    """Start a watcher of this process. When this process ends, the watcher ends all processes with its own mark.

    Args:
        variable: Environment variable that holds the mark.
        env: Environment of the watcher, with the mark. The marked processes also need :data:`KEEPS_MARKS`.
        leftover: File that the watcher removes before it ends the processes.

    Returns:
        The watcher. It exits after the other processes, or by any signal.
    """
    return start_on_pipe("embodyflow.orchestration.watchers.orphans", variable, *map(str, leftover or ()), env=env)


def end_marked_processes(variable: str, mark: str, grace: float = 3.0) -> None:
    """End all other processes with the mark by SIGTERM, and by SIGKILL after ``grace`` seconds."""
    left = marked_processes(variable, mark)
    for process in left:
        _signal(process, kill=False)
    psutil.wait_procs(left, timeout=grace)
    while left := marked_processes(variable, mark):  # some may have started meanwhile
        for process in left:
            _signal(process, kill=True)
        psutil.wait_procs(left, timeout=grace)


def marked_processes(variable: str, mark: str) -> list[psutil.Process]:
    """Return this user's other processes whose environment variable ``variable`` is ``mark``."""
    others = [process for process in psutil.process_iter() if process.pid != os.getpid()]
    return [process for process in others if _value(process, variable) == mark]


def _value(process: psutil.Process, variable: str) -> str | None:
    try:
        value: str | None = process.environ().get(variable)
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # it ended meanwhile, or is another user's
        return None
    return value


def _signal(process: psutil.Process, *, kill: bool) -> None:
    try:
        process.kill() if kill else process.terminate()
    except psutil.NoSuchProcess:
        return


if __name__ == "__main__":
    flow_runs = sys.stdin.read()
    if len(sys.argv) > 2:
        Leftover(Path(sys.argv[2]), sys.argv[3]).remove()
    try:
        close_last(flow_runs)
    finally:
        end_marked_processes(sys.argv[1], os.environ[sys.argv[1]])

"""A watcher that ends what a killed process would leave behind.

Ray ends its workers when the process that started them dies. Prefect does not end the server that it starts for a flow
without one, if that flow is killed without a word (SIGKILL, out of memory). Nor does everything end that is merely told
to when the launcher of a stack is killed. The watcher holds one end of a pipe; when the other end closes, whatever the
reason, it ends every process that carries the watched one's mark in its environment.
"""

import os
import subprocess
import sys
import uuid
from collections.abc import Mapping

import psutil

FLOW_VARIABLE = "EMBODYFLOW_FLOW_PROCESS"


def watch_over_flow_process() -> None:
    """Start the watcher of this process, which runs a flow by itself; it ends with it."""
    os.environ[FLOW_VARIABLE] = uuid.uuid4().hex
    start_watcher(FLOW_VARIABLE, os.environ)


def start_watcher(variable: str, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a watcher of this process: when this ends, it ends all that carry the same mark as itself.

    Args:
        variable: name of the environment variable that is the mark.
        env: the watcher's environment, mark included.

    Returns:
        The watcher. It ends by itself, after the others, or by any signal.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "embodyflow.orchestration.server.orphans", variable],
        stdin=subprocess.PIPE,  # its write end is ours alone: child processes do not inherit it
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(env),
        start_new_session=True,
    )


def end_marked(variable: str, mark: str, grace: float = 3.0) -> None:
    """End every process whose ``variable`` is ``mark``, this one left out: SIGTERM, SIGKILL after ``grace`` seconds."""
    left = marked(variable, mark)
    for process in left:
        _signal(process, kill=False)
    psutil.wait_procs(left, timeout=grace)
    while left := marked(variable, mark):  # some may have been started meanwhile
        for process in left:
            _signal(process, kill=True)
        psutil.wait_procs(left, timeout=grace)


def marked(variable: str, mark: str) -> list[psutil.Process]:
    """Return this user's processes, this one left out, whose environment variable ``variable`` is ``mark``."""
    others = [process for process in psutil.process_iter() if process.pid != os.getpid()]
    return [process for process in others if _value(process, variable) == mark]


def _value(process: psutil.Process, variable: str) -> str | None:
    try:
        value: str | None = process.environ().get(variable)
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # gone meanwhile, or another user's
        return None
    return value


def _signal(process: psutil.Process, *, kill: bool) -> None:
    try:
        process.kill() if kill else process.terminate()
    except psutil.NoSuchProcess:
        return


if __name__ == "__main__":
    sys.stdin.read()
    end_marked(sys.argv[1], os.environ[sys.argv[1]])

"""A watcher that ends what a killed flow process would leave behind.

Ray ends its workers when the process that started them dies. Prefect does not end the server that it starts for a flow
without one, if that flow is killed without a word (SIGKILL, out of memory). The watcher holds one end of a pipe; when
the other end closes, whatever the reason, it ends every process that carries the flow's mark in its environment.
"""

import os
import subprocess
import sys
import uuid

import psutil

MARK = "EMBODYFLOW_FLOW_PROCESS"


def watch_over_this_process() -> None:
    """Start the watcher of this process; it ends with it."""
    os.environ[MARK] = uuid.uuid4().hex
    subprocess.Popen(
        [sys.executable, "-m", "flows.orphans"],
        stdin=subprocess.PIPE,  # its write end is ours alone: child processes do not inherit it
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def end_marked(mark: str, grace: float = 3.0) -> None:
    """End every process that carries the mark, this one left out: SIGTERM, and SIGKILL after ``grace`` seconds."""
    marked = [process for process in psutil.process_iter() if process.pid != os.getpid() and _mark(process) == mark]
    for process in marked:
        _signal(process, kill=False)
    for process in psutil.wait_procs(marked, timeout=grace)[1]:
        _signal(process, kill=True)


def _mark(process: psutil.Process) -> str | None:
    try:
        mark: str | None = process.environ().get(MARK)
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # gone meanwhile, or another user's
        return None
    return mark


def _signal(process: psutil.Process, *, kill: bool) -> None:
    try:
        process.kill() if kill else process.terminate()
    except psutil.NoSuchProcess:
        return


if __name__ == "__main__":
    sys.stdin.read()
    end_marked(os.environ[MARK])

"""Waiting for other processes and their effects."""

import subprocess
import time
from collections.abc import Callable

import psutil

from embodyflow.stack.processes import stop_processes

RUN_SECONDS = 480.0
"""Time limit of a run on a busy machine; it takes a tenth of that on a quiet one."""


def eventually(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    """Wait up to ``seconds`` for the condition; return True if it was met. Long waits ask every half second."""
    deadline, pause = time.monotonic() + seconds, 0.02
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(1.1 * pause, 0.5)
    return bool(met)


def finish(process: subprocess.Popen[str], seconds: float = RUN_SECONDS) -> str:
    """Wait for the end of a run; return its output.

    A run that takes longer is killed. Left alone it would keep its workers in the cluster that it shares with the runs
    of later tests, and those would wait in vain.

    Raises:
        AssertionError: The run took longer; the message ends with its output.
    """
    try:
        return process.communicate(timeout=seconds)[0]
    except BaseException as error:  # also the test's own time limit
        stop_processes([psutil.Process(process.pid)], grace=10)
        output = process.communicate()[0] or ""
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        raise AssertionError(f"not over after {seconds:.0f} s: {process.args}\n{output[-4000:]}") from None

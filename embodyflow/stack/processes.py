"""Child processes that never outlive their launcher.

Three safety nets, each for the processes that escape the one before. The launcher stops every child by its handle. It
adopts orphaned descendants (as a Linux *subreaper*) and kills them as its own. And every process of a stack carries the
stack's name in its environment, so that a watcher (:mod:`embodyflow.orchestration.watchers.orphans`) kills it if the
launcher is killed, and the next start finds it if the watcher is killed too.
"""

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from embodyflow.process.files.private_files import open_private

STACK_VARIABLE = "EMBODYFLOW_STACK"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def adopt_orphans() -> None:
    """Make this process the parent of its orphaned descendants, in place of init. Does nothing outside Linux."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start_process(
    command: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str],
    cwd: Path,
    outlives_us: bool = False,
    descriptors: Sequence[int] = (),
) -> psutil.Popen:
    """Start ``command`` in its own session, so that Ctrl-C in the terminal reaches only the launcher.

    Args:
        command: Program and arguments.
        log: File to which stdout and stderr are appended; created for the user only, since they may hold a password.
        env: Whole environment of the child.
        cwd: Working directory of the child.
        outlives_us: True if the child may live on when this process ends; otherwise it gets SIGTERM then (on Linux).
        descriptors: Descriptors of open files that the child inherits.

    Returns:
        The running process.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab", opener=open_private) as output:
        return psutil.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
            pass_fds=descriptors,
            preexec_fn=_reset_signals if outlives_us else _tie_to_parent,
        )


def _reset_signals() -> None:
    # A command that a shell starts with `&` ignores SIGINT, and its children inherit that. Prefect's worker would then
    # ignore SIGTERM too, because it turns SIGTERM into SIGINT.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _tie_to_parent() -> None:
    _reset_signals()
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def stop_processes(processes: Iterable[psutil.Process], *, grace: float) -> None:
    """Stop processes and their descendants.

    Args:
        processes: Processes to send SIGTERM to.
        grace: Seconds until the survivors among them and their descendants get SIGKILL.
    """
    roots = list(processes)
    family = [process for root in roots for process in [root, *descendants(root)]]
    for root in roots:
        _signal(root, signal.SIGTERM)
    for process in _wait(family, timeout=grace):
        _signal(process, signal.SIGKILL)
    _wait(family, timeout=5.0)


def kill_descendants() -> None:
    """SIGKILL every descendant of this process, adopted ones included."""
    while left := [process for process in descendants(psutil.Process()) if _is_running(process)]:
        for process in left:
            _signal(process, signal.SIGKILL)
        _wait(left, timeout=5.0)


def descendants(process: psutil.Process) -> list[psutil.Process]:
    """Return the living descendants of ``process``, an empty list if it is gone."""
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def find_process(pid: int, created: float) -> psutil.Process | None:
    """Return the process ``pid`` if it is alive and was created at ``created`` (seconds since the epoch)."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - created) < 1.0 and _is_running(process)
    except psutil.NoSuchProcess:
        return None
    return process if same else None


def _wait(processes: Iterable[psutil.Process], *, timeout: float) -> list[psutil.Process]:
    """Wait until the processes have ended; return those still running after ``timeout`` seconds.

    A zombie counts as ended. psutil's own wait would wait for zombies that their dead parent never reaped.
    """
    deadline = time.monotonic() + timeout
    while (running := [each for each in processes if _is_running(each)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return running


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _signal(process: psutil.Process, signum: int) -> None:
    try:
        process.send_signal(signum)
    except psutil.NoSuchProcess:
        return

"""Why a stack is down: which process ended, the last lines of its log, and what to do."""

import json
import re
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from embodyflow.process.files.durable_files import write_atomically
from embodyflow.process.ports import answers
from embodyflow.stack.prefect_api import PrefectApi, stack_api
from embodyflow.stack.services import WORK_POOL, worker_name
from embodyflow.stack.stack_folder import StackFolder, StackState

NUM_LINES = 5
"""Lines of a log that the status shows."""

LATE_SECONDS = 120.0
"""Age of a worker's heartbeat, which is due every 30 s, from which the worker counts as stuck."""

_LOG_TAIL_BYTES = 16384

_REMEDIES = {
    r"too many open files|Errno 24\b": "raise the limit of open files: `ulimit -n 4096`",
    r"no space left|Errno 28\b|disk quota": "make room on the disk that the log names",
    r"permission denied|Errno 13\b|read-only file system": "give this user the right to write where the log says, or "
    "set HOME and TMPDIR to folders of this user",
    r"cannot allocate memory|Errno 12\b|MemoryError|\bSIGKILL\b": "free memory, or lower rollout.num_workers and "
    "rollout.envs_per_worker",
    r"timed out during startup|did not answer within": "wait until the machine is less busy",
    r"address already in use": "stop the program that uses the port",
    r"can't start new thread|resource temporarily unavailable": "raise the limit of processes: `ulimit -u`",
}
"""Patterns of messages, and what helps; the first that matches counts."""


class StackError(RuntimeError):
    """A service of the stack did not start, or ended unexpectedly.

    Attributes:
        log: Log file of the service.
    """

    def __init__(self, reason: str, log: Path) -> None:
        super().__init__(f"{reason}: see {log}")
        self.reason, self.log = reason, log


@dataclass(frozen=True)
class StackEnd:
    """The record of a stack that ended by a fault.

    Attributes:
        reason: Process that ended or did not start, and its error.
        when: Seconds since the epoch.
        log: Log file of that process, if one process is at fault.
    """

    reason: str
    when: float
    log: str | None

    @classmethod
    def from_error(cls, error: Exception) -> "StackEnd":
        """Return the record of a stack that ``error`` ended now."""
        if isinstance(error, StackError):
            return cls(error.reason, time.time(), str(error.log))
        return cls(str(error).partition("\n")[0] or type(error).__name__, time.time(), None)


def write_end(folder: StackFolder, end: StackEnd) -> None:
    """Record how the stack ended, for :func:`diagnose`."""
    write_atomically(_path(folder), json.dumps(asdict(end), indent=2))


def remove_end(folder: StackFolder) -> None:
    """Remove the record: a stack starts, or was stopped on purpose."""
    _path(folder).unlink(missing_ok=True)


def describe_exit(name: str, code: int, log: Path) -> str:
    """Return a line with a process, its exit code or the signal that killed it, and its last error."""
    how = f"ended with exit code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
    error = _last_error(log)
    return f"{name} {how}" + (f" ({error})" if error else "")


def diagnose(folder: StackFolder) -> list[str]:
    """Return lines that say why no stack is up, or what is wrong with the one that is; none if it is ready."""
    state = folder.read_state()
    if state is not None and state.alive:
        return _faults(folder, state)
    if state is not None:
        return _explained(folder, StackEnd(*_killed(folder, state)))
    if (end := _read_end(folder)) is not None:
        return _explained(folder, end)
    return ["down: no stack was started here, or it was stopped; `embodyflow up` starts one"]


def _killed(folder: StackFolder, state: StackState) -> tuple[str, float, str | None]:
    log = folder.log("stack")
    reason = f"its launcher (process {state.pid}) was killed, or the machine was restarted"
    return reason, folder.state_time(), str(log) if log.exists() else None


def _explained(folder: StackFolder, end: StackEnd) -> list[str]:
    when = datetime.fromtimestamp(end.when, UTC).astimezone().isoformat(" ", "seconds")
    lines = [] if end.log is None else _last_lines(Path(end.log))
    remedy = _remedy("\n".join([end.reason, *lines]))
    return [
        f"down: {end.reason}",
        f"{'when':<12}{when}",
        *_shown_log(end.log, lines),
        f"{'to do':<12}{remedy + '; then ' if remedy else ''}`embodyflow up` starts a new stack",
    ]


def _faults(folder: StackFolder, state: StackState) -> list[str]:
    """Return the first fault of a stack whose launcher is alive, as lines."""
    if not state.ready:
        return [f"starting: process {state.pid} has not finished yet; logs are in {folder.log('stack').parent}"]
    api = stack_api(folder, state)
    checks: dict[str, Callable[[], str | None]] = {
        "prefect-server": lambda: None if api.is_healthy() else f"does not answer at {state.api_url}",
        "ray": lambda: None if answers(state.ray_address) else f"does not answer at {state.ray_address}",
        "prefect-worker": lambda: _lateness(api, folder, state),
    }
    for name, check in checks.items():
        if (fault := check()) is not None:
            log = folder.log(name)
            lines = _last_lines(log)
            remedy = _remedy("\n".join(lines)) or "wait, or `embodyflow down` and `embodyflow up`"
            shown = _shown_log(str(log), lines) if log.exists() else []
            return [f"not ready: {name} {fault}", *shown, f"{'to do':<12}{remedy}"]
    return []


def _lateness(api: PrefectApi, folder: StackFolder, state: StackState) -> str | None:
    """Return how late a worker's heartbeat is; None if it is not, or if another machine's clock took its time."""
    if "prefect-server" not in state.processes:
        return None
    last = api.heartbeat(WORK_POOL, worker_name(folder))
    if last is None:
        return "has sent no heartbeat"
    age = (datetime.now(UTC) - datetime.fromisoformat(last)).total_seconds()
    return f"has sent no heartbeat for {age:.0f} s" if age > LATE_SECONDS else None


def _shown_log(log: str | None, lines: list[str]) -> list[str]:
    return [] if log is None else [f"{'log':<12}{log}", *(f"{'':<12}| {line}" for line in lines)]


def _last_lines(log: Path, number: int = NUM_LINES) -> list[str]:
    """Return the last lines of a log that are not blank."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _LOG_TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:  # it was never written, or is another user's
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-number:]


def _last_error(log: Path) -> str | None:
    """Return the last line of a log that names an exception, such as ``PermissionError: …``."""
    named = [line for line in _last_lines(log, number=50) if re.match(r"[\w.]*(Error|Exception|Exit)\b: ", line)]
    return named[-1] if named else None


def _remedy(text: str) -> str | None:
    return next((remedy for pattern, remedy in _REMEDIES.items() if re.search(pattern, text, re.IGNORECASE)), None)


def _read_end(folder: StackFolder) -> StackEnd | None:
    try:
        return StackEnd(**json.loads(_path(folder).read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        return StackEnd(f"unknown, because {_path(folder)} is damaged", _path(folder).stat().st_mtime, None)


def _path(folder: StackFolder) -> Path:
    return folder.private / "stack-end.json"

"""Commands that a benchmark runs. They end when the benchmark ends, whatever ends it."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from embodyflow.stack.processes import start_process, stop_processes

ROOT = Path(__file__).resolve().parent.parent
GRACE = 60.0
"""Seconds that a command has to stop what it has started."""


def find_test_modules() -> None:
    """Let the caller import the modules that tests share."""
    folder = ROOT / "tests" / "support"
    sys.path[:0] = map(str, (folder, *sorted(folder.glob("[a-z]*/")), ROOT / "tests" / "chaos"))


def run_command(command: Sequence[str], log: Path, *, timeout: float | None = None) -> None:
    """Run a command in the project's folder to its end, with its output in a file.

    Args:
        command: Program and arguments.
        log: File of the output; it is overwritten.
        timeout: Seconds after which the command is stopped; ``None`` waits.

    Raises:
        SystemExit: The command failed or was stopped; the message has the end of its output.
    """
    with running(command, log) as process:
        try:
            code = process.wait(timeout)
        except (subprocess.TimeoutExpired, psutil.TimeoutExpired):
            code = None
    check_command(command, log, code)


@contextmanager
def running(
    command: Sequence[str], log: Path, env: Mapping[str, str] = os.environ, folder: Path = ROOT
) -> Iterator[psutil.Popen]:
    """Run a command in a folder within the block, which stops it at its end; see :func:`run_command`."""
    log.unlink(missing_ok=True)
    process = start_process(command, log=log, env=env, cwd=folder)
    try:
        yield process
    finally:
        stop_processes([process], grace=GRACE)


def check_command(command: Sequence[str], log: Path, code: int | None) -> None:
    """Raise :class:`SystemExit` unless the exit code is 0; ``None`` says that the command took too long."""
    if code != 0:
        how = "stopped at its time limit" if code is None else f"exit code {code}"
        raise SystemExit(f"{' '.join(command)}\n{how}\n{log.read_text()[-2000:]}")

"""Sandbox for untrusted programs.

The tests run in one sandbox and call the program, which runs in another, over a socket
(:mod:`embodyflow.rewards.sandbox.judging`). The program's process never holds the tests or what they expect.

Each runs in a fresh interpreter in its own session, with an empty folder, an empty environment, no input, and
limits on time, memory, files and processes; its output is discarded. If the caller is root, it runs as an
unprivileged user of its own, who must be able to read Python's libraries. ``SECURITY.md`` says what each kind of
isolation holds against.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from embodyflow.errors import ConfigError
from embodyflow.rewards.reward_config import SANDBOX_START_SECONDS, CodeConfig, Isolation
from embodyflow.rewards.sandbox.sandbox_child import MAX_FOLDER_BYTES
from embodyflow.rewards.sandbox.sandbox_folder import temporary_folder
from embodyflow.rewards.sandbox.sandbox_usage import Usage

Verdict: TypeAlias = Literal["passed", "failed", "timed_out", "undecided"]

ROOT = Path(__file__).parents[3]
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from embodyflow.rewards.sandbox.sandbox_child import main; "
    "sys.path.pop(0); main(int(sys.argv[2]), int(sys.argv[3]))"
)
MAX_OUTPUT_BYTES = 2**24
"""Maximum size of a file that a program writes."""
MAX_PROCESSES = 64
WATCH_SECONDS = 0.05
"""Interval at which the memory of all processes of a program is added up."""
END_SECONDS = 5.0
"""Timeout for the kernel to end the processes of a program."""


class SandboxError(RuntimeError):
    """The sandbox failed to run a program; the program is not to blame."""


class JudgeError(ValueError):
    """The tests cannot judge any program; the message says why."""


@cache
def choose_isolation(wanted: Isolation) -> str:
    """Return the isolation that programs get on this machine, after a trial of it.

    Raises:
        ConfigError: This machine does not permit it; the message names the choices.
    """
    if wanted == "auto":
        permitted = [level for level in ("bubblewrap", "namespaces") if _why_impossible(level) is None]
        if permitted:
            return permitted[0]
        reason = _why_impossible("namespaces")
        raise ConfigError(
            f"isolation=auto: this machine does not permit user namespaces ({reason}), so programs cannot be isolated "
            "from the run; permit namespaces, install bubblewrap, or accept the weaker isolation=guard (SECURITY.md)"
        )
    if (reason := _why_impossible(wanted)) is not None:
        raise ConfigError(
            f"isolation={wanted}: this machine does not permit it ({reason}); allowed are auto, bubblewrap, namespaces "
            "and guard, where the kernel permits them"
        )
    return wanted


@cache
def _why_impossible(isolation: str) -> str | None:
    """Return why a program cannot run with this isolation; ``None`` if it can."""
    if isolation == "bubblewrap" and shutil.which("bwrap") is None:
        return "bwrap is not installed"
    if isolation == "bubblewrap" and os.getuid() == 0:
        return "the kernel does not limit the number of processes of bubblewrap's root"
    try:
        _run("", "", CodeConfig(), isolation)
    except SandboxError as error:
        return str(error)
    return None


def run_tests(program: str, tests: str, config: CodeConfig) -> Verdict:
    """Run a program, and tests that call it from another process.

    A program passes if the tests run to their end; a program that exits earlier fails. The verdict is ``undecided`` if
    the tests compare an object of the program's own class, whose methods are the program's, with data.

    Raises:
        ConfigError: This machine does not permit the isolation.
        JudgeError: The tests pass a value to the program that cannot cross between processes.
        SandboxError: The sandbox could not be set up.
    """
    return _run(program, tests, config, choose_isolation(config.isolation))


def _run(program: str, tests: str, config: CodeConfig, isolation: str) -> Verdict:
    memory = round(config.memory_gb * 1e9)
    order = {
        "isolation": isolation,
        "parent": os.getpid(),
        "memory": memory,
        "seconds": config.time_limit,
        "output": MAX_OUTPUT_BYTES,
        "processes": MAX_PROCESSES,
    }
    with contextlib.ExitStack() as stack:
        tests_end, program_end = socket.socketpair()
        with tests_end, program_end:
            judge = stack.enter_context(_sandbox(isolation, tests_end))
            judged = stack.enter_context(_sandbox(isolation, program_end))
        usage = Usage(judged.pid, judged.folder, memory)
        deadline = time.monotonic() + SANDBOX_START_SECONDS
        _start(judge.connection, {**order, "program": None, "tests": tests}, deadline)
        _start(judged.connection, {**order, "program": program}, deadline)  # once nothing can read the judge's memory
        return _watch(judge.connection, usage, config.time_limit)


class _Sandbox(NamedTuple):
    connection: socket.socket
    pid: int
    folder: str


@contextlib.contextmanager
def _sandbox(isolation: str, calls: socket.socket) -> Iterator[_Sandbox]:
    """Start the process of a sandbox, which waits for its order; end it and all its processes on exit."""
    ours, theirs = socket.socketpair()
    descriptors = [theirs.fileno(), calls.fileno()]
    with temporary_folder("embodyflow-sandbox-") as folder:
        with theirs:
            process = subprocess.Popen(
                [*_wrapper(isolation, folder), sys.executable, "-I", "-c", _START, str(ROOT), *map(str, descriptors)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={"HOME": folder, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
            )
        with ours:
            try:
                yield _Sandbox(ours, process.pid, folder)
            finally:
                with contextlib.suppress(ProcessLookupError):  # the pid is not reused until the process is waited for
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                _wait_for_descendants(ours)


def _wrapper(isolation: str, folder: str) -> list[str]:
    """Return the command of bubblewrap that isolates another command; empty without bubblewrap."""
    if isolation != "bubblewrap":
        return []
    command = [
        shutil.which("bwrap") or "bwrap",
        "--unshare-all",
        "--die-with-parent",
        "--cap-drop",
        "ALL",
        "--uid",
        "65534",
        "--gid",
        "65534",
    ]
    mounts = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--size", str(MAX_FOLDER_BYTES)]
    return [*command, *mounts, "--tmpfs", folder, "--chdir", folder]


def _start(connection: socket.socket, order: Mapping[str, object], deadline: float) -> None:
    connection.settimeout(max(1e-3, deadline - time.monotonic()))
    try:
        connection.sendall(json.dumps(order).encode() + b"\n")
        first = connection.recv(len("started")).decode(errors="replace")
        if first != "started":
            first += connection.recv(4096).decode(errors="replace")
    except OSError as error:
        raise SandboxError(f"the sandbox did not start: {error}") from error
    if first != "started":
        raise SandboxError(first or "the sandbox did not start: its process ended")


def _watch(judge: socket.socket, usage: Usage, time_limit: float) -> Verdict:
    """Return the verdict that the tests' process reports, unless the program exceeds a limit before."""
    deadline = time.monotonic() + time_limit
    while True:
        left = deadline - time.monotonic()
        judge.settimeout(max(1e-3, min(left, WATCH_SECONDS)))
        try:
            report = judge.recv(4096).decode()
        except TimeoutError:
            if left <= WATCH_SECONDS:
                return "timed_out"
            if usage.exceeded():
                return "failed"
            continue
        if report.startswith("error "):
            raise JudgeError(f"ground_truth cannot judge a program: {report.removeprefix('error ')}")
        return "passed" if report == "passed" else "undecided" if report == "undecided" else "failed"


def _wait_for_descendants(connection: socket.socket) -> None:
    """Wait until no process holds the other end of the socket; the kernel takes a moment to end killed processes."""
    deadline = time.monotonic() + END_SECONDS
    with contextlib.suppress(OSError):  # timeout or connection reset
        while (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            if not connection.recv(4096):
                return

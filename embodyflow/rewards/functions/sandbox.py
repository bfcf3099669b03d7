"""Sandbox for untrusted programs.

A program runs in a fresh interpreter in its own session, with an empty folder, an empty environment, no input, and
limits on time, memory, files and processes; its output is discarded. If the kernel permits namespaces, the program has
no network, cannot write outside its folder, and all processes that it starts end with it. If the caller is root, the
program runs as an unprivileged user of its own, who must be able to read Python's libraries. The program can still read
all files that its user can read: the sandbox contains accidents of a policy, not a determined attacker. Against an
attacker, run the whole trainer in a container.
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal, TypeAlias

from embodyflow.rewards.reward_config import SANDBOX_START_SECONDS, CodeConfig

Verdict: TypeAlias = Literal["passed", "failed", "timed_out"]

CHILD = Path(__file__).with_name("sandbox_child.py")
MAX_OUTPUT_BYTES = 2**24
"""Maximum size of a file that a program writes."""
MAX_PROCESSES = 64
END_SECONDS = 5.0
"""Timeout for the kernel to end the processes of a program."""


class SandboxError(RuntimeError):
    """The sandbox failed to run a program; the program is not to blame."""


def run_tests(program: str, tests: str, config: CodeConfig) -> Verdict:
    """Run a program, then its tests in the same namespace.

    A program passes if the tests run to their end; a program that exits earlier fails.

    Raises:
        SandboxError: The sandbox could not be set up.
    """
    ours, theirs = socket.socketpair()
    token = secrets.token_hex(16)
    order = {
        "program": program,
        "tests": tests,
        "token": token,
        "isolation": config.isolation,
        "memory": round(config.memory_gb * 1e9),
        "seconds": config.time_limit,
        "output": MAX_OUTPUT_BYTES,
        "processes": MAX_PROCESSES,
    }
    with tempfile.TemporaryDirectory(prefix="embodyflow-sandbox-", ignore_cleanup_errors=True) as folder:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-I", str(CHILD), str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={"HOME": folder, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
            )
        with ours:
            try:
                return _watch(ours, json.dumps(order), token, config.time_limit)
            finally:
                with contextlib.suppress(ProcessLookupError):  # the pid is not reused until the process is waited for
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                _wait_for_descendants(ours)


def _watch(connection: socket.socket, order: str, token: str, time_limit: float) -> Verdict:
    connection.settimeout(SANDBOX_START_SECONDS)
    try:
        connection.sendall(order.encode() + b"\n")
        first = connection.recv(4096).decode(errors="replace")
    except OSError as error:
        raise SandboxError(f"the sandbox did not start: {error}") from error
    if not first.startswith("started"):
        raise SandboxError(f"the sandbox did not start: {first or 'its process ended'}")
    received, deadline = first.removeprefix("started"), time.monotonic() + time_limit
    while token not in received:
        connection.settimeout(max(1e-3, deadline - time.monotonic()))
        try:
            part = connection.recv(4096)
        except TimeoutError:
            return "timed_out"
        if not part or len(received) > 4096:
            return "failed"
        received += part.decode(errors="replace")
    return "passed"


def _wait_for_descendants(connection: socket.socket) -> None:
    """Wait until no process holds the other end of the socket; the kernel takes a moment to end killed processes."""
    deadline = time.monotonic() + END_SECONDS
    with contextlib.suppress(OSError):  # timeout or connection reset
        while (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            if not connection.recv(4096):
                return

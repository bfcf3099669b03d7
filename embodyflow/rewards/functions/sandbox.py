"""Programs that nobody has read, run with little at hand.

A program gets a fresh interpreter in a session of its own, an empty folder and environment, no input, and limits on
time, memory, files and processes; its output is thrown away. Where the kernel permits namespaces it has no network,
cannot write outside its folder, and whatever it starts ends with it. Run by root it is a user of its own, who must then
be able to read Python's libraries. It still reads what its user may read: this keeps a policy's accidents in, not a
determined attacker, for whom the whole trainer belongs into a container.
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
"""Of one file that a program writes."""
MAX_PROCESSES = 64
END_SECONDS = 5.0
"""How long the kernel has to end what a program has started."""


class SandboxError(RuntimeError):
    """A program was not run, which is not its fault."""


def run_tests(program: str, tests: str, config: CodeConfig) -> Verdict:
    """Run a program and then its tests in the same namespace.

    Passed is what comes to the end of the tests: not a program that exits before.

    Raises:
        SandboxError: the sandbox could not be set up.
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
                with contextlib.suppress(ProcessLookupError):  # its number is its own until it is waited for
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                _await_end_of_all(ours)


def _watch(connection: socket.socket, order: str, token: str, time_limit: float) -> Verdict:
    connection.settimeout(SANDBOX_START_SECONDS)
    try:
        connection.sendall(order.encode() + b"\n")
        first = connection.recv(4096).decode(errors="replace")
    except OSError as error:
        raise SandboxError(f"the sandbox did not start: {error}") from error
    if not first.startswith("started"):
        raise SandboxError(f"the sandbox did not start: {first or 'it ended'}")
    said, deadline = first.removeprefix("started"), time.monotonic() + time_limit
    while token not in said:
        connection.settimeout(max(1e-3, deadline - time.monotonic()))
        try:
            part = connection.recv(4096)
        except TimeoutError:
            return "timed_out"
        if not part or len(said) > 4096:
            return "failed"
        said += part.decode(errors="replace")
    return "passed"


def _await_end_of_all(connection: socket.socket) -> None:
    """Return when no process holds the other end any more; they have been killed, which takes the kernel a moment."""
    deadline = time.monotonic() + END_SECONDS
    with contextlib.suppress(OSError):  # out of time, or reset
        while (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            if not connection.recv(4096):
                return

"""A run of a sweep in a process of its own, by the command that a user would type."""

import asyncio
import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from prefect.settings import get_current_settings

from embodyflow.orchestration.request.command_line import FLOW_RUN_VARIABLE, STOP_SECONDS, STOPPED
from embodyflow.orchestration.server.credentials import API_KEY, AUTH_STRING, credentials_in

KILL_SECONDS = STOP_SECONDS + 4.0
"""Seconds that a stopped process has until it is killed. It leaves by itself a little earlier."""

_MAX_REASON = 300
"""Most characters of a reason; the log has all."""


@dataclass(frozen=True)
class Outcome:
    """How a process ended.

    Attributes:
        code: Its exit code; negative is the signal that ended it.
        seconds: Its time.
        reason: Last line of its output.
    """

    code: int
    seconds: float
    reason: str

    @property
    def was_stopped(self) -> bool:
        """True if somebody stopped the run."""
        return self.code in (STOPPED, -signal.SIGTERM)


def command(flow: str, words: list[str], run_id: str) -> list[str]:
    """Return the command that starts a run or continues it."""
    return [sys.executable, "-m", f"flows.{flow}", *words, f"run_id={run_id}", "if_exists=resume"]


def environment(flow_run_id: UUID, ray_address: str) -> dict[str, str]:
    """Return the environment of a run's process: it shares our Prefect server and our Ray cluster.

    Args:
        flow_run_id: Flow run that the process carries out.
        ray_address: Address of the cluster.
    """
    api = get_current_settings().api
    credentials = credentials_in(api)
    access = {"PREFECT_API_URL": api.url, AUTH_STRING: credentials.auth_string, API_KEY: credentials.api_key}
    # A variable such as PREFECT__FLOW_RUN_ID tells Prefect which flow run this process carries out.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT__")}
    given = {name: value for name, value in access.items() if value is not None}
    return ours | given | {FLOW_RUN_VARIABLE: str(flow_run_id), "RAY_ADDRESS": ray_address}


async def run_process(words: list[str], env: Mapping[str, str], log: Path) -> Outcome:
    """Run a command to its end and return the outcome; it is stopped if this coroutine is cancelled.

    Args:
        words: Words of the command.
        env: Its environment.
        log: File that its output is appended to.
    """
    began = time.monotonic()
    with log.open("a") as output:
        output.write(f"$ {shlex.join(words)}\n")
        output.flush()
        # A session of its own keeps Ctrl-C in the terminal from the process, which we stop in order.
        process = await asyncio.create_subprocess_exec(
            *words,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = await process.wait()
        finally:
            await _stop(process)
    return Outcome(code, time.monotonic() - began, _reason(code, log))


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End a process that still runs: by SIGTERM, after which it commits nothing more, then by SIGKILL.

    Its watcher ends what it has started.
    """
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), KILL_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()


def _reason(code: int, log: Path) -> str:
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:_MAX_REASON]

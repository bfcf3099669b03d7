"""The local stack, started and stopped as one: Ray, Prefect server, work pool and Prefect worker."""

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType

import psutil

from embodyflow.errors import ConfigError
from embodyflow.orchestration.server.orphans import marked_processes, start_watcher
from embodyflow.stack.prefect_api import PrefectApi, end_stale_runs
from embodyflow.stack.processes import (
    STACK_VARIABLE,
    adopt_orphans,
    claim_port,
    descendants,
    find_process,
    ignore_signals,
    kill_descendants,
    start_process,
    stop_processes,
)
from embodyflow.stack.services import (
    WORK_POOL,
    attached,
    database_environment,
    deploy_command,
    environment,
    ray_command,
    ray_environment,
    server_command,
    worker_command,
)
from embodyflow.stack.stack_folder import StackFolder, StackState

START_TIMEOUT = 180.0
"""Seconds that a part of the stack may take to answer: minutes on a busy machine, the first time."""

FLOW_GRACE = 8.0
"""Seconds that a flow run has to stop its workers and tell the server, when the stack is stopped."""


class StackError(RuntimeError):
    """A part of the stack did not start, or ended by itself."""


class Stack:
    """Starts on ``with``, stops at its end, whatever ends it.

    What the environment names is used and left alone: ``PREFECT_API_URL``, ``RAY_ADDRESS``.

    Args:
        folder: the project's.
        command: that starts it: ``up`` or ``run``.

    Raises:
        ConfigError: a stack is up here already, or starting, or an address in the environment does not answer.
        StackError: a part of it did not start; the message names its log.
    """

    def __init__(self, folder: StackFolder, command: str) -> None:
        self.folder, self._command = folder, command
        self._api_url, self._ray_address = attached(os.environ)
        self._owns_database = False
        self._processes: dict[str, psutil.Popen] = {}
        self._watcher: subprocess.Popen[bytes] | None = None  # ends what would outlive this process
        self._held = ExitStack()  # the folder's lock and ports, until all has ended

    def __enter__(self) -> "Stack":
        self._held.enter_context(self.folder.locked())
        clear_leftovers(self.folder)
        adopt_orphans()
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def check(self) -> None:
        """Raise StackError if a part of the stack has ended."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise StackError(f"{name} ended with exit code {process.returncode}: see {self.folder.log(name)}")

    def stop(self) -> None:
        """Stop what was started: flow runs first, while there is a server to report to; then all the rest."""
        ignore_signals()
        try:
            self._stop_flow_runs()
        except (OSError, ConfigError) as error:  # no answer, or none of Prefect's: the next stack ends what is left
            print(f"warning: the Prefect server was not told that its runs are over: {error}", file=sys.stderr)
        finally:
            stop_processes(self._processes.values(), grace=5.0)
            kill_descendants()
            clear_leftovers(self.folder)
            self._held.close()

    def _stop_flow_runs(self) -> None:
        orphans = self._orphans()
        if (worker := self._processes.pop("prefect-worker", None)) is not None:
            stop_processes([*descendants(worker), *orphans], grace=FLOW_GRACE)
            stop_processes([worker], grace=3.0)
        if self._processes.get("prefect-server") is not None and self._api.is_healthy():
            self._end_stale_runs("The stack was stopped.")

    def _orphans(self) -> list[psutil.Process]:
        """Return what parts that are gone have left to us: flow runs, where the Prefect worker died."""
        parts = {process.pid for process in (*self._processes.values(), self._watcher) if process is not None}
        return [child for child in psutil.Process().children() if child.pid not in parts]

    def _start(self) -> None:
        if self._api_url is None:
            self.folder.check_prefect_toml()  # it is written when all answers
        self._plan()
        self._check_attached()
        self._watcher = start_watcher(STACK_VARIABLE, self.env)
        if self._ray_address is None:
            port, temp_dir = int(self.state.ray_address.rpartition(":")[2]), str(self.state.ray_temp_dir)
            command = ray_command(port, self._claim(10001), temp_dir)
            env = {key: value for key, value in self.env.items() if key != "RAY_ADDRESS"}
            self._launch("ray", command, env=env)
        if self._api_url is None:
            port = int(self._api.ui_url.rpartition(":")[2])
            self._launch("prefect-server", server_command(port), env=self._server_environment())
            self._wait_for("prefect-server", self._api.is_healthy)
        self._end_stale_runs("The stack that ran it was killed.")
        self._api.create_work_pool(WORK_POOL)
        self._launch("prefect-worker", worker_command(self._worker_name()))
        self._deploy()
        self._wait_for("prefect-worker", lambda: self._api.work_pool_is_ready(WORK_POOL))
        if self._ray_address is None:
            self._wait_for("ray", lambda: _answers(self.state.ray_address))
        if self._api_url is None:
            self.folder.write_prefect_toml(self.state.api_url)
        pids = {name: process.pid for name, process in self._processes.items()}
        self._set_state(replace(self.state, ready=True, processes=pids))

    def _plan(self) -> None:
        """Choose addresses, say where we are to be found, prepare the environment of all that is started."""
        api_url = self._api_url or f"http://127.0.0.1:{self._claim(4200)}/api"
        ray_address = self._ray_address or f"127.0.0.1:{self._claim(6379)}"
        # Ray's sockets lie there: a longer path than about 100 characters and it does not start.
        temp_dir = None if self._ray_address else tempfile.mkdtemp(prefix="embodyflow-ray-")
        me = psutil.Process()
        self._set_state(StackState(me.pid, me.create_time(), False, api_url, ray_address, temp_dir, {}, self._command))
        self._api = PrefectApi(api_url)
        self.env = environment(self.folder) | {"PREFECT_API_URL": api_url, "RAY_ADDRESS": ray_address}
        if self._ray_address is None:
            self.env |= ray_environment(self.folder)

    def _server_environment(self) -> dict[str, str]:
        from embodyflow.stack.database import is_named  # Prefect takes a second to import; Ray starts meanwhile

        self._owns_database = not is_named()
        return self.env | (database_environment(self.folder) if self._owns_database else {})

    def _claim(self, preferred: int) -> int:
        """Return a port that is ours until we have stopped."""
        port, claim = claim_port(preferred)
        self._held.enter_context(claim)
        return port

    def _check_attached(self) -> None:
        if self._api_url is not None and not self._api.is_healthy():
            raise ConfigError(f"PREFECT_API_URL={self._api_url}: no answer; unset it to have a server started")
        if self._ray_address is not None and not _answers(self._ray_address):
            raise ConfigError(f"RAY_ADDRESS={self._ray_address}: no answer; unset it to have Ray started")

    def _launch(self, name: str, command: list[str], *, env: dict[str, str] | None = None) -> psutil.Popen:
        log = self.folder.log(name)
        log.unlink(missing_ok=True)
        process = start_process(command, log=log, env=env or self.env, cwd=self.folder.root)
        self._processes[name] = process
        return process

    def _wait_for(self, name: str, answers: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while not answers():
            self.check()
            if time.monotonic() > deadline:
                log = self.folder.log(name)
                raise StackError(f"{name} did not answer in {START_TIMEOUT:.0f} s: see {log}")
            time.sleep(0.1)

    def _deploy(self) -> None:
        process = self._launch("prefect-deploy", deploy_command(self.folder))
        code = process.wait(timeout=START_TIMEOUT)
        del self._processes["prefect-deploy"]
        if code != 0:
            log = self.folder.log("prefect-deploy")
            raise StackError(f"{self.folder.prefect_yaml} was refused: see {log}")

    def _end_stale_runs(self, message: str) -> None:
        """End the runs that our worker has left, whoever else uses the server or its database."""
        end_stale_runs(self._api, message, worker=None if self._owns_database else self._worker_name())

    def _worker_name(self) -> str:
        digest = hashlib.sha256(str(self.folder.root).encode()).hexdigest()
        return f"{socket.gethostname()}-{digest[:8]}"

    def _set_state(self, state: StackState) -> None:
        self.state = state
        self.folder.write_state(state)


def stop_stack(folder: StackFolder) -> bool:
    """Stop the stack another process runs in ``folder``, or what is left of one; return whether there was.

    Raises:
        ConfigError: another one is starting meanwhile.
    """
    state = folder.read_state()
    if state is None:
        return False
    if (launcher := find_process(state.pid, state.created)) is not None:
        stop_processes([launcher], grace=30.0)
    with folder.locked():
        clear_leftovers(folder)
    return True


def clear_leftovers(folder: StackFolder) -> None:
    """Remove the processes and files of a stack whose launcher is gone or is us."""
    stop_processes(marked_processes(STACK_VARIABLE, str(folder.root)), grace=3.0)
    state = folder.read_state()
    if state is not None and state.ray_temp_dir is not None:
        shutil.rmtree(state.ray_temp_dir, ignore_errors=True)
    folder.remove_prefect_toml()
    folder.remove_state()


def _answers(address: str) -> bool:
    """Whether something listens at ``[ray://]host:port``; other forms, such as ``auto``, pass."""
    host, colon, port = address.rpartition("//")[2].rpartition(":")
    if not colon:
        return True
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except (OSError, ValueError, OverflowError):  # nobody there, no such host, no port
        return False
    return True

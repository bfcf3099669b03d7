"""The local stack, started and stopped as a whole: Ray, Prefect server, work pool and Prefect worker."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from types import TracebackType

import psutil

from embodyflow.errors import ConfigError
from embodyflow.orchestration.server.credentials import API_KEY, AUTH_STRING, DATABASE, SERVER_AUTH_STRING
from embodyflow.orchestration.server.settings import access_settings, server_command
from embodyflow.orchestration.watchers.orphans import marked_processes, start_watcher
from embodyflow.process.files.private_folder import RAY_SUBFOLDER, private_folder
from embodyflow.process.ports import answers, claim_port, listen_on
from embodyflow.process.ray_start import NUM_RAY_STARTS, RAY_TOO_SLOW
from embodyflow.stack.diagnosis import StackEnd, StackError, describe_exit, remove_end, write_end
from embodyflow.stack.health_automations import install_health_automations
from embodyflow.stack.heartbeats import install_automations
from embodyflow.stack.prefect_api import end_stale_runs, stack_api
from embodyflow.stack.processes import (
    STACK_VARIABLE,
    adopt_orphans,
    descendants,
    kill_descendants,
    start_process,
    stop_processes,
)
from embodyflow.stack.services import (
    RAY_STARTED,
    WORK_POOL,
    WORKER_STARTED,
    attached,
    create_auth_string,
    database_environment,
    deploy_command,
    environment,
    ray_command,
    ray_environment,
    worker_command,
    worker_name,
)
from embodyflow.stack.signals import ignore_signals
from embodyflow.stack.stack_folder import DamagedStateError, StackFolder, StackState

START_TIMEOUT = 180.0
"""Seconds within which a service must answer; the first start on a busy machine takes minutes."""

FLOW_GRACE = 8.0
"""Seconds that a flow run has to stop its workers and report to the server when the stack stops."""


class Stack:
    """A context manager that starts the stack and stops it at the end of the ``with`` block, however that ends.

    Services that ``PREFECT_API_URL`` and ``RAY_ADDRESS`` name are used and neither started nor stopped.

    Args:
        folder: Folder of the project.
        command: Command that starts the stack, ``up`` or ``run``.

    Raises:
        ConfigError: A stack is up or starting in this folder, or an address in the environment does not answer.
        StackError: A service did not start; the message names its log.
    """

    def __init__(self, folder: StackFolder, command: str) -> None:
        self.folder, self._command = folder, command
        self._api_url, self._ray_address = attached(os.environ)
        self._listener: socket.socket | None = None  # for our Prefect server
        self._owns_database = False
        self._num_ray_starts, self._client_port = 0, 0
        self._processes: dict[str, psutil.Popen] = {}
        self._watcher: subprocess.Popen[bytes] | None = None  # kills what would outlive this process
        self._held = ExitStack()  # the folder's lock and the claimed ports, held until everything has ended

    def __enter__(self) -> "Stack":
        self._held.enter_context(self.folder.locked())
        remove_end(self.folder)
        clear_leftovers(self.folder)
        adopt_orphans()
        try:
            self._start()
        except BaseException as error:
            self._end(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        self.stop()
        if isinstance(error, Exception):  # a signal raises SystemExit
            try:
                write_end(self.folder, StackEnd.from_error(error))
            except OSError as failed:  # such as a full disk, which may be why the stack ends
                print(f"warning: could not record why the stack ended: {failed}", file=sys.stderr)

    def check(self) -> None:
        """Raise StackError if a service of the stack has ended; start Ray again if it was too slow to start."""
        for name, process in list(self._processes.items()):
            if process.poll() is None:
                continue
            if self._may_start_again(name):
                self._start_ray()
            else:
                log = self.folder.log(name)
                raise StackError(describe_exit(name, int(process.returncode), log), log)

    def stop(self) -> None:
        """Stop all that was started: flow runs first, while they can report to the server, then the services."""
        ignore_signals()
        try:
            self._stop_flow_runs()
        except (OSError, ConfigError) as error:  # the next stack ends the runs that are left
            print(f"warning: could not report the end of the runs to the Prefect server: {error}", file=sys.stderr)
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
        """Return the processes that a dead service left to us: flow runs, if the Prefect worker died."""
        parts = {process.pid for process in (*self._processes.values(), self._watcher) if process is not None}
        return [child for child in psutil.Process().children() if child.pid not in parts]

    def _start(self) -> None:
        if self._api_url is None:
            self.folder.check_prefect_toml()  # before anything starts; it is written once everything answers
        self._plan()
        self._check_attached()
        self._watcher = start_watcher(STACK_VARIABLE, self.env, self.folder.prefect_toml)
        if self._ray_address is None:
            self._client_port = self._claim(10001)
            self._start_ray()
        if self._listener is not None:
            with self._listener:
                env = self._server_environment(self._listener.getsockname()[1])
                command, descriptors = server_command(self._listener), [self._listener.fileno()]
                self._launch("prefect-server", command, env=env, descriptors=descriptors)
            self._wait_for("prefect-server", self._api.is_healthy)
        self._end_stale_runs("The stack that ran it was killed.")
        self._api.create_work_pool(WORK_POOL)
        started = self._start_worker()
        self._deploy()
        install_automations(self._api, WORK_POOL)
        install_health_automations(self._api)
        self._wait_for("prefect-worker", started)
        if self._ray_address is None:
            self._wait_for("ray", self._ray_is_up)
        if self._api_url is None:
            self.folder.write_prefect_toml(self.state.api_url, self.folder.auth_string())
        pids = {name: process.pid for name, process in self._processes.items()}
        self._set_state(replace(self.state, ready=True, processes=pids))

    def _start_ray(self) -> None:
        port = int(self.state.ray_address.rpartition(":")[2])
        command = ray_command(port, self._client_port, f"{self.state.ray_temp_dir}/{RAY_SUBFOLDER}")
        self._num_ray_starts += 1
        # Ray's workers make no requests to Prefect, and the programs and environments in them inherit what they have.
        withheld = ("RAY_ADDRESS", API_KEY, AUTH_STRING, SERVER_AUTH_STRING)
        given = {key: value for key, value in self.env.items() if key not in withheld and not key.startswith(DATABASE)}
        self._launch("ray", command, env=given)

    def _ray_is_up(self) -> bool:
        return RAY_STARTED in self.folder.log("ray").read_text(errors="replace") and answers(self.state.ray_address)

    def _may_start_again(self, name: str) -> bool:
        """Return True if a service has ended only because the machine is too busy, and the stack is still starting."""
        if name != "ray" or self.state.ready or self._num_ray_starts == NUM_RAY_STARTS:
            return False
        return RAY_TOO_SLOW in self.folder.log(name).read_text(errors="replace")

    def _start_worker(self) -> Callable[[], bool]:
        """Start the Prefect worker; return a function that is True once the server has its heartbeat and it polls."""
        name = worker_name(self.folder)
        before = self._api.heartbeat(WORK_POOL, name)  # of an earlier stack's worker, which has the same name
        # Prefect's worker keeps files in `runner_storage` below TMPDIR, which would belong to the first user who
        # started one on this machine.
        temp_dir = self._held.enter_context(private_folder())
        self._launch("prefect-worker", worker_command(name), env=self.env | {"TMPDIR": str(temp_dir)})
        log = self.folder.log("prefect-worker")
        return lambda: (
            WORKER_STARTED in log.read_text(errors="replace") and self._api.heartbeat(WORK_POOL, name) != before
        )

    def _plan(self) -> None:
        """Choose the addresses, write the stack's state and prepare the environment of its processes."""
        api_url = self._api_url or self._own_api_url()
        ray_address = self._ray_address or f"127.0.0.1:{self._claim(6379)}"
        temp_dir = None
        if self._ray_address is None:
            temp_dir = str(self._held.enter_context(private_folder(for_sockets=True)))
        me = psutil.Process()
        self._set_state(
            StackState(
                pid=me.pid,
                created=me.create_time(),
                ready=False,
                api_url=api_url,
                ray_address=ray_address,
                ray_temp_dir=temp_dir,
                processes={},
                command=self._command,
                owns_server=self._api_url is None,
            )
        )
        self._api = stack_api(self.folder, self.state)
        self.env = environment(self.folder, self.state)
        if self._ray_address is None:
            self.env |= ray_environment(self.folder)

    def _own_api_url(self) -> str:
        """Listen for our own Prefect server, create its password and return its address."""
        create_auth_string(self.folder)
        self._listener = self._held.enter_context(listen_on(4200))
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/api"

    def _server_environment(self, port: int) -> dict[str, str]:
        from embodyflow.stack.database import is_named  # importing Prefect takes a second, while Ray starts

        self._owns_database = not is_named()
        database = database_environment(self.folder) if self._owns_database else {}
        return self.env | access_settings(self.folder.auth_string(), port) | database

    def _claim(self, preferred: int) -> int:
        """Claim a port until the stack has stopped."""
        port, claim = claim_port(preferred)
        self._held.enter_context(claim)
        return port

    def _check_attached(self) -> None:
        if self._api_url is not None:
            if not self._api.is_healthy():
                raise ConfigError(f"PREFECT_API_URL={self._api_url}: does not answer; unset it to start a server here")
            self._api.check_access()
        if self._ray_address is not None and not answers(self._ray_address):
            raise ConfigError(f"RAY_ADDRESS={self._ray_address}: does not answer; unset it to start Ray here")

    def _launch(
        self, name: str, command: list[str], *, env: dict[str, str] | None = None, descriptors: Sequence[int] = ()
    ) -> psutil.Popen:
        log = self.folder.log(name)
        log.unlink(missing_ok=True)
        process = start_process(command, log=log, env=env or self.env, cwd=self.folder.root, descriptors=descriptors)
        self._processes[name] = process
        return process

    def _wait_for(self, name: str, answers: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while not answers():
            self.check()
            if time.monotonic() > deadline:
                log = self.folder.log(name)
                raise StackError(f"{name} did not answer within {START_TIMEOUT:.0f} s", log)
            time.sleep(0.1)

    def _deploy(self) -> None:
        process = self._launch("prefect-deploy", deploy_command(self.folder))
        log = self.folder.log("prefect-deploy")
        try:
            code = process.wait(timeout=START_TIMEOUT)
        except psutil.TimeoutExpired as error:
            raise StackError(f"prefect-deploy did not end within {START_TIMEOUT:.0f} s", log) from error
        del self._processes["prefect-deploy"]
        if code != 0:
            raise StackError(f"Prefect refused {self.folder.prefect_yaml}", log)

    def _end_stale_runs(self, message: str) -> None:
        """End the runs that our worker left, and no one else's on a shared server or database."""
        end_stale_runs(self._api, message, worker=None if self._owns_database else worker_name(self.folder))

    def _set_state(self, state: StackState) -> None:
        self.state = state
        self.folder.write_state(state)


def stop_stack(folder: StackFolder) -> bool:
    """Stop the stack that another process runs in ``folder``, or its remains; return True if there was one.

    Raises:
        ConfigError: Another stack is starting in the folder.
    """
    if not folder.has_state():
        return False
    if (launcher := folder.launcher()) is not None:
        stop_processes([launcher], grace=30.0)
    with folder.locked():
        clear_leftovers(folder)
    return True


def clear_leftovers(folder: StackFolder) -> None:
    """Remove the processes and files of a stack whose launcher is gone or is this process."""
    stop_processes(marked_processes(STACK_VARIABLE, str(folder.root)), grace=3.0)
    with suppress(DamagedStateError):  # the next start removes a folder of Ray that nobody holds
        state = folder.read_state()
        if state is not None and state.ray_temp_dir is not None:
            shutil.rmtree(state.ray_temp_dir, ignore_errors=True)
    folder.remove_prefect_toml()
    folder.prefect_auth.unlink(missing_ok=True)
    folder.remove_state()

"""``embodyflow run``: run one experiment, on the stack that is up or on a temporary one."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psutil
from rich.console import Console

from embodyflow.cli.run_folders.resuming import how_to_resume
from embodyflow.cli.up import ui_address
from embodyflow.errors import ConfigError
from embodyflow.orchestration.display.progress_bar import RunProgress
from embodyflow.record.run_folder import RunFolder
from embodyflow.stack.deployments import accepts, deploy_again
from embodyflow.stack.prefect_api import TERMINAL, stack_api
from embodyflow.stack.processes import start_process, stop_processes
from embodyflow.stack.services import environment, run_command
from embodyflow.stack.stack import Stack
from embodyflow.stack.stack_folder import StackFolder, StackState, live_stack

POLL_SECONDS = 5.0
"""Interval at which the flow run's state is polled, in case the watch misses an event."""

RESUME_SECONDS = 30.0
"""How long to wait for the Prefect worker to resume a crashed run before it counts as finished."""


class FlowRun:
    """A flow run of a deployment, submitted and watched by the ``prefect`` command.

    Args:
        folder: Stack folder of the project.
        state: Stack to run it on.
        deployment: Deployment, ``<flow>/<name>``.
        parameters: Parameters of the flow.
    """

    def __init__(self, folder: StackFolder, state: StackState, deployment: str, parameters: dict[str, object]) -> None:
        self._api = stack_api(folder, state)
        self._run_id = parameters["run_id"]
        self._log = folder.log(f"watch-{self._run_id}")
        self._log.unlink(missing_ok=True)  # may hold an earlier flow run with the same run_id
        command = run_command(deployment, json.dumps(parameters))
        self._watch: psutil.Popen = start_process(
            command, log=self._log, env=environment(folder, state), cwd=folder.root
        )
        self._next_poll = 0.0
        self._over_since: float | None = None

    def poll(self) -> int | None:
        """Return the exit code: 0 if the run completed, 1 if not, ``None`` while it is running.

        The watch ends on an event, which a busy server may lose. So a run is also over if the server has reported a
        terminal state for some seconds, or if the run was deleted. A crashed run is given time to be resumed.
        """
        code: int | None = self._watch.poll()
        if code == 0 or (code is not None and self.id is None):
            return code
        if self.id is None or time.monotonic() < self._next_poll:
            return None
        self._next_poll = time.monotonic() + POLL_SECONDS
        try:
            run = self._api.flow_run(self.id)
        except OSError:  # the server is unavailable; a live watch waits for it
            return code
        kind = "DELETED" if run is None else run["state_type"]
        if kind not in (*TERMINAL, "DELETED"):
            self._over_since = None
            return None
        self._over_since = self._over_since or time.monotonic()
        grace = RESUME_SECONDS if kind == "CRASHED" else POLL_SECONDS if code is None else 0.0
        if time.monotonic() < self._over_since + grace:
            return None
        stop_processes([self._watch], grace=1.0)
        return 0 if kind == "COMPLETED" else 1

    @property
    def id(self) -> str | None:
        """The flow run's id; ``None`` if it is not submitted (yet)."""
        found = re.search(r"UUID: ([0-9a-f-]{36})", self._log.read_text(errors="replace"))
        return found.group(1) if found else None

    def cancel(self) -> None:
        """Ask the Prefect worker to cancel the run, which takes seconds, and stop the watch."""
        try:
            if self._watch.poll() is None and self.id is not None and self._api.is_healthy():
                self._api.set_state(self.id, "CANCELLING", "Cancelled by `embodyflow run`.", force=False)
        except OSError as error:
            print(f"warning: the run was not cancelled on the Prefect server: {error}", file=sys.stderr)
        finally:
            stop_processes([self._watch], grace=1.0)

    def failure(self) -> str:
        """Return the reason why the run failed or was not accepted."""
        if self.id is None:
            return self._log.read_text(errors="replace").strip()
        if (run := self._api.flow_run(self.id)) is None:
            return f"the flow run was deleted; resume={self._run_id} continues after the last commit"
        state = run["state"]
        if state["type"] == "FAILED":  # Prefect puts the flow's exception into the state
            return str(state["message"])
        return self._api.last_error(self.id) or str(state["message"])


def run_experiment(flow: str | None, words: Sequence[str]) -> int:
    """Run an experiment and show its progress; return the exit code.

    Args:
        flow: Name of the flow, such as ``grpo``; ``None`` is the one of the chosen algorithm.
        words: Words ``key=value``: parameters of the flow, including the experiment, and Hydra overrides.

    Raises:
        ConfigError: One line that names the mistake and what is allowed; nothing was started.
        StackError: The local stack did not start.
    """
    from embodyflow.orchestration.request.existing_run import continued  # these take seconds to import
    from embodyflow.orchestration.request.request import check, parse_arguments

    folder = StackFolder.here()
    request = continued(parse_arguments(words, flow))
    deployment = folder.deployment(request.flow, request.experiment)
    config = check(request, starts=True)
    parameters = request.parameters() | {"run_id": config.run_id}
    run_dir = config.run_dir
    console = Console(stderr=True)
    with _names_resumption(RunFolder(run_dir)), _stack(folder, console) as (state, check_stack):
        if not accepts(stack_api(folder, state), deployment, parameters):
            console.print("registering the project's new experiments and deployments …")
            deploy_again(folder, state)
        run = FlowRun(folder, state, deployment, parameters)
        try:
            progress = RunProgress(run_dir, console, config.headline, config.iterations)
            code = _follow(run, progress, check_stack)
        except BaseException:
            run.cancel()
            raise
        if code != 0:
            print(f"error: {run.failure()}", file=sys.stderr)
            print(f"log: {folder.log('prefect-worker')}", file=sys.stderr)
            return code
    print(config.summary_line(json.loads((run_dir / "summary.json").read_text())))
    print(f"run_dir={run_dir}")
    return 0


@contextmanager
def _names_resumption(folder: RunFolder) -> Iterator[None]:
    """Print how to resume the run if a signal or an error ends the block, once everything has stopped."""
    try:
        yield
    except BaseException:
        print(f"stopped; {how_to_resume(folder)}", file=sys.stderr)
        raise


@contextmanager
def _stack(folder: StackFolder, console: Console) -> Iterator[tuple[StackState, Callable[[], None]]]:
    """Use the stack of ``embodyflow up`` or start a temporary one; yield its state and its health check."""
    state = live_stack(folder)
    if state is None:
        console.print("starting Ray and Prefect …")
        with Stack(folder, "run") as stack:
            console.print(f"Prefect UI: {ui_address(folder, stack.state)}", soft_wrap=True)
            yield stack.state, stack.check
    elif state.command == "run":
        raise ConfigError(
            f"{folder.root}: the stack of process {state.pid} belongs to another `embodyflow run`; wait for its end, "
            "or share one stack by `embodyflow up`"
        )
    elif state.ready:
        console.print(f"Prefect UI: {ui_address(folder, state)}", soft_wrap=True)
        yield state, lambda: None  # `embodyflow up` checks its own stack
    else:
        raise ConfigError(f"{folder.root}: the stack of process {state.pid} is still starting; try again shortly")


def _follow(run: FlowRun, progress: RunProgress, check_stack: Callable[[], None]) -> int:
    with progress:
        while (code := run.poll()) is None:
            progress.update()
            check_stack()
            time.sleep(0.2)
        progress.update()
    return code

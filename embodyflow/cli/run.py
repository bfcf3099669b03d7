"""``embodyflow run``: one experiment from start to end, with or without a stack that is already up."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from rich.console import Console

from embodyflow.errors import ConfigError
from embodyflow.orchestration.server.progress_bar import RunProgress
from embodyflow.stack.prefect_api import TERMINAL, PrefectApi
from embodyflow.stack.processes import start_process, stop_processes
from embodyflow.stack.services import environment, run_command
from embodyflow.stack.stack import Stack
from embodyflow.stack.stack_folder import StackFolder, live_stack

LOOK_EVERY = 5.0
"""Seconds between two looks at a flow run's state, beside the events that the watch receives."""

CRASH_SECONDS = 30.0
"""Seconds that a crashed run has to be resumed by the Prefect worker before it counts as over."""


class FlowRun:
    """A flow run submitted to a deployment, watched by the ``prefect`` command.

    Args:
        folder: the project's.
        api_url: of the server.
        deployment: ``<flow>/<name>``.
        parameters: the flow's.
    """

    def __init__(self, folder: StackFolder, api_url: str, deployment: str, parameters: dict[str, object]) -> None:
        self._api = PrefectApi(api_url)
        self._run_id = parameters["run_id"]
        self._log = folder.log(f"watch-{self._run_id}")
        self._log.unlink(missing_ok=True)  # an earlier flow run of this run_id is not this one
        command = run_command(deployment, json.dumps(parameters))
        env = environment(folder) | {"PREFECT_API_URL": api_url}
        self._watch: psutil.Popen = start_process(command, log=self._log, env=env, cwd=folder.root)
        self._next_look = 0.0
        self._over_since: float | None = None

    def poll(self) -> int | None:
        """Return the exit code: 0 completed, 1 not; None while the run lasts.

        The watch ends on an event, and a busy server may lose one. A run that the server has known to be over for
        some seconds is over, and one that somebody has deleted; one that crashed is given time to be taken up again.
        """
        code: int | None = self._watch.poll()
        if code == 0 or (code is not None and self.id is None):
            return code
        if self.id is None or time.monotonic() < self._next_look:
            return None
        self._next_look = time.monotonic() + LOOK_EVERY
        try:
            run = self._api.flow_run(self.id)
        except OSError:  # the server is away; a watch that runs waits for it to come back
            return code
        kind = "DELETED" if run is None else run["state_type"]
        if kind not in (*TERMINAL, "DELETED"):
            self._over_since = None
            return None
        self._over_since = self._over_since or time.monotonic()
        patience = CRASH_SECONDS if kind == "CRASHED" else LOOK_EVERY if code is None else 0.0
        if time.monotonic() < self._over_since + patience:
            return None
        stop_processes([self._watch], grace=1.0)
        return 0 if kind == "COMPLETED" else 1

    @property
    def id(self) -> str | None:
        """The flow run's id; None if it was not submitted (yet)."""
        found = re.search(r"UUID: ([0-9a-f-]{36})", self._log.read_text())
        return found.group(1) if found else None

    def cancel(self) -> None:
        """Ask the Prefect worker to end the run, which it does within seconds, and stop watching."""
        try:
            if self._watch.poll() is None and self.id is not None and self._api.is_healthy():
                self._api.set_state(self.id, "CANCELLING", "Cancelled by `embodyflow run`.", force=False)
        except OSError as error:
            print(f"warning: the Prefect server was not told to cancel the run: {error}", file=sys.stderr)
        finally:
            stop_processes([self._watch], grace=1.0)

    def failure(self) -> str:
        """Return why the run failed, or was not even accepted."""
        if self.id is None:
            return self._log.read_text().strip()
        if (run := self._api.flow_run(self.id)) is None:
            return f"the flow run was deleted; resume={self._run_id} goes on after the last commit"
        state = run["state"]
        if state["type"] == "FAILED":  # an exception in the flow, told by Prefect in the state
            return str(state["message"])
        return self._api.last_error(self.id) or str(state["message"])


def run_experiment(flow: str | None, words: Sequence[str]) -> int:
    """Run an experiment and show it; return the exit code.

    Args:
        flow: Name of the flow, such as ``grpo``; ``None`` is the one of the chosen algorithm.
        words: ``key=value``: the flow's parameters, among them the experiment, and Hydra overrides.

    Raises:
        ConfigError: one line that names what is wrong and what is allowed; nothing was started.
        StackError: the local stack did not start.
    """
    from embodyflow.orchestration.request.request import check, parse_arguments  # takes seconds to import

    folder = StackFolder.here()
    request = parse_arguments(words, flow)
    deployment = folder.deployment(request.flow, request.experiment)
    config = check(request)
    parameters = request.parameters() | {"run_id": config.run_id}
    run_dir = config.run_dir
    console = Console(stderr=True)
    with _stack(folder, console) as (api_url, check_stack):
        run = FlowRun(folder, api_url, deployment, parameters)
        try:
            code = _follow(run, run_dir, console, check_stack)
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
def _stack(folder: StackFolder, console: Console) -> Iterator[tuple[str, Callable[[], None]]]:
    """Use the stack that ``up`` runs in this folder, or one of our own; yield its API's address and its check."""
    state = live_stack(folder)
    if state is None:
        console.print("starting Ray and Prefect …")
        with Stack(folder, "run") as stack:
            console.print(f"Prefect UI: {PrefectApi(stack.state.api_url).ui_url}", soft_wrap=True)
            yield stack.state.api_url, stack.check
    elif state.command == "run":
        raise ConfigError(
            f"{folder.root}: the stack of process {state.pid} ends with its `embodyflow run`; wait for it, or have "
            "several runs share the stack of `embodyflow up`"
        )
    elif state.ready:
        console.print(f"Prefect UI: {PrefectApi(state.api_url).ui_url}", soft_wrap=True)
        yield state.api_url, lambda: None  # whoever started it looks after it
    else:
        raise ConfigError(f"{folder.root}: the stack of process {state.pid} is still starting; try again shortly")


def _follow(run: FlowRun, run_dir: Path, console: Console, check_stack: Callable[[], None]) -> int:
    with RunProgress(run_dir, console) as progress:
        while (code := run.poll()) is None:
            progress.update()
            check_stack()
            time.sleep(0.2)
        progress.update()
    return code

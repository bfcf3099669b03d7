"""``embodyflow up``, ``down`` and ``status``: a local stack in the foreground or the background."""

import os
import sys
import time
from typing import Any

from embodyflow.cli.run_folders.resuming import how_to_resume, runs_of_stack
from embodyflow.errors import ConfigError
from embodyflow.orchestration.server.settings import sign_in_url
from embodyflow.record.run_folder import unfinished_runs
from embodyflow.stack.diagnosis import diagnose
from embodyflow.stack.prefect_api import PrefectApi
from embodyflow.stack.processes import start_process, stop_processes
from embodyflow.stack.stack import Stack, stop_stack
from embodyflow.stack.stack_folder import DamagedStateError, StackFolder, StackState, live_stack


def foreground() -> int:
    """Start the stack and keep it until a signal arrives; return the exit code."""
    with Stack(StackFolder.here(), "up") as stack:
        print(_describe(stack.folder, stack.state), flush=True)
        print(*_resume_commands(stack.folder), sep="\n", end="", flush=True)
        print("Ctrl-C, or `embodyflow down` in another terminal, stops everything", flush=True)
        try:
            while True:
                stack.check()
                time.sleep(0.5)
        except SystemExit:  # raised by the signal handler: the normal end of a stack
            return 0


def detached() -> int:
    """Start the stack in the background and wait until it is ready; return the exit code."""
    folder = StackFolder.here()
    folder.prepare()
    log = folder.log("stack")
    log.unlink(missing_ok=True)
    command = [sys.executable, "-m", "embodyflow.cli.main", "up"]
    launcher = start_process(command, log=log, env=os.environ, cwd=folder.root, outlives_us=True)
    try:
        while (state := _ready_stack(folder, launcher.pid)) is None:
            if launcher.poll() is not None:
                print(log.read_text(errors="replace").strip(), file=sys.stderr)
                return int(launcher.returncode)
            time.sleep(0.2)
    except SystemExit:
        stop_processes([launcher], grace=30.0)
        raise
    print(_describe(folder, state))
    print(*_resume_commands(folder), sep="\n", end="")
    return 0


def _ready_stack(folder: StackFolder, launcher: int) -> StackState | None:
    """Return the stack of a launcher, given by its process id, once it is ready."""
    try:
        state = live_stack(folder)
    except DamagedStateError:  # the file is an earlier stack's, and the launcher is about to replace it
        return None
    return state if state is not None and state.pid == launcher and state.ready else None


def down() -> int:
    """Stop the stack of the current folder, after a line for each run that this stops; return the exit code."""
    folder = StackFolder.here()
    for run in runs_of_stack(folder):
        print(f"stops the run {run.path.name}; {how_to_resume(run)}", file=sys.stderr, flush=True)
    print("stopped" if stop_stack(folder) else "no stack is up here")
    return 0


def status() -> int:
    """Print the state of the stack; return exit code 0 if it is ready, else 1."""
    folder = StackFolder.here()
    faults = diagnose(folder)
    print(*faults, sep="\n", end="\n" if faults else "")
    if (state := live_stack(folder)) is not None:
        print(_describe(folder, state))
    else:
        print(*_resume_commands(folder), sep="\n", end="")
    return 1 if faults else 0


def ui_address(folder: StackFolder, state: StackState) -> str:
    """Return the address of the UI; that of our own server signs the browser in."""
    url = PrefectApi(state.api_url).ui_url
    return sign_in_url(url, folder.auth_string()) if state.owns_server else url


def _resume_commands(folder: StackFolder) -> list[str]:
    """Return lines with a command for each of the latest unfinished runs, and a blank line after them."""
    lines = []
    for run in unfinished_runs(folder.root / "runs")[-3:]:
        try:
            config = run.config()
        except ConfigError as error:  # the run cannot be resumed, and hides no others
            lines.append(str(error))
            continue
        done = f"{run.checkpoints.committed()[-1]} of {config['iterations']} iterations"
        lines.append(f"{'to resume':<12}{_resume_command(folder, run.path.name, config)}  ({done})")
    return [*lines, ""] if lines else []


def _resume_command(folder: StackFolder, run_id: str, config: dict[str, Any]) -> str:
    try:
        deployment = folder.deployment(config["flow"], config["experiment"])
    except ConfigError:  # a custom flow without a deployment
        return f"python -m flows.{config['flow']} resume={run_id}"
    return f"prefect deployment run {deployment} -p experiment={config['experiment']} -p resume={run_id}"


def _describe(folder: StackFolder, state: StackState) -> str:
    lines = {
        "Prefect UI": ui_address(folder, state),
        "Ray": state.ray_address,
        "processes": ", ".join(f"{name} {pid}" for name, pid in state.processes.items()),
        "to run": "prefect deployment run grpo/embodied --watch",
    }
    return "\n".join(f"{name:<12}{value}" for name, value in lines.items())

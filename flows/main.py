"""``python -m flows.<name> key=value …``: a training flow from the command line, without any server to start first."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import Flow
from rich.console import Console

from embodyflow.errors import ConfigError
from embodyflow.run_folder import RunFolder
from flows.orphans import watch_over_this_process
from flows.progress import RunProgress
from flows.request import check, parse_arguments

STOPPED = 128 + signal.SIGINT
"""Exit code of a run that was stopped."""

STOP_SECONDS = 10.0
"""How long a stopped run has for ending its processes and telling Prefect of it."""


def main(flow: Flow[..., Any]) -> None:
    """Check the command line, run the flow, print its result; end the process with its exit code."""
    try:
        request = parse_arguments(sys.argv[1:], flow.name)
        config = check(request)
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    parameters = request.parameters()
    if request.resume is None:
        parameters["run_id"] = config.run_id
    watch_over_this_process()
    try:
        summary = asyncio.run(_run(flow, parameters, config.run_dir))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print(_farewell(config.run_dir), file=sys.stderr)
        sys.exit(STOPPED)
    print(config.summary_line(summary))
    print(f"run_dir={config.run_dir}")


async def _run(flow: Callable[..., Any], parameters: dict[str, Any], run_dir: Path) -> dict[str, Any]:
    """Run the flow, on a terminal beside a progress bar.

    Ctrl-C and SIGTERM cancel it, so that its ``finally`` blocks stop what it started.
    """
    running = asyncio.ensure_future(flow(**parameters))

    def stop() -> None:
        running.cancel()
        # Ctrl-C in a terminal reaches the server that Prefect started too, and Prefect then waits minutes for it.
        leaving = threading.Timer(STOP_SECONDS, _leave, [run_dir])
        leaving.daemon = True
        leaving.start()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    console = Console(stderr=True)
    if console.is_terminal:
        with RunProgress(run_dir, console) as progress:
            while not (await asyncio.wait([running], timeout=0.2))[0]:
                progress.update()
            progress.update()
    result: dict[str, Any] = await running
    return result


def _leave(run_dir: Path) -> None:
    """End the process as if it were killed: its watcher ends what it has started."""
    print(_farewell(run_dir), file=sys.stderr, flush=True)
    os._exit(STOPPED)


def _farewell(run_dir: Path) -> str:
    return f"stopped; continue with resume={run_dir.name}" if RunFolder(run_dir).committed() else "stopped"

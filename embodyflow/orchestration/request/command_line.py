"""``python -m flows.<name> key=value …``: a training flow from the command line, without any server to start first."""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect import Flow
from rich.console import Console

from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.request import check, parse_arguments
from embodyflow.orchestration.request.usage import answer_help
from embodyflow.orchestration.server.orphans import start_flow_watcher
from embodyflow.orchestration.server.progress_bar import RunProgress
from embodyflow.record.run_folder import RunFolder

STOPPED = 128 + signal.SIGINT
"""Exit code of a run that was stopped."""

STOP_SECONDS = 8.0
"""How long a stopped run has for ending its processes and telling Prefect of it; its watcher needs a few more."""


def main(flow: Flow[..., Any]) -> None:
    """Check the command line, run the flow, print its result; end the process with its exit code."""
    answer_help(
        flow,
        sys.argv[1:],
        "Every other key=value changes the experiment's configuration, in Hydra's grammar, such as trainer.epochs=2: "
        f"`embodyflow config --flow {flow.name} experiment=push` shows all keys, with what they mean.",
    )
    try:
        request = parse_arguments(sys.argv[1:], flow.name)
        config = check(request)
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    parameters = request.parameters()
    if request.resume is None:
        parameters["run_id"] = config.run_id
    hint = f"stopped; continue with resume={config.run_id}"
    try:
        summary = run_to_its_end(
            flow,
            parameters,
            config.run_dir,
            lambda: hint if RunFolder(config.run_dir).checkpoints.committed() else "stopped",
        )
    except ConfigError as error:  # what only the cluster can tell, such as too few GPUs
        print(error, file=sys.stderr)
        sys.exit(2)
    print(config.summary_line(summary))
    print(f"run_dir={config.run_dir}")


def run_to_its_end(
    flow: Flow[..., Any], parameters: dict[str, Any], run_dir: Path, if_stopped: Callable[[], str]
) -> dict[str, Any]:
    """Run a flow in this process and return its result; a signal stops it, and ends the process with code 130.

    Args:
        flow: to be run.
        parameters: of it.
        run_dir: folder of the run.
        if_stopped: what to say after a signal.
    """
    start_flow_watcher()
    logging.getLogger("prefect.flow_runs").addFilter(_without_traceback)

    def leave() -> None:
        """End the process as if it were killed: its watcher ends what it has started."""
        print(if_stopped(), file=sys.stderr, flush=True)
        os._exit(STOPPED)

    try:
        return asyncio.run(_run(flow, parameters, run_dir, leave))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print(if_stopped(), file=sys.stderr)
        sys.exit(STOPPED)
    finally:
        gc.freeze()  # the process is about to end: a last search for garbage would take it another second


def _without_traceback(record: logging.LogRecord) -> bool:
    """Leave of a wrong configuration, as Prefect logs it, the line that says what is wrong."""
    if record.exc_info and isinstance(record.exc_info[1], ConfigError):
        record.exc_info = None
    return True


async def _run(
    flow: Callable[..., Any], parameters: dict[str, Any], run_dir: Path, leave: Callable[[], None]
) -> dict[str, Any]:
    """Run the flow, on a terminal beside a progress bar.

    Ctrl-C and SIGTERM cancel it, so that its ``finally`` blocks stop what it started.
    """
    running, loop = asyncio.ensure_future(flow(**parameters)), asyncio.get_running_loop()

    def stop(*_: Any) -> None:
        loop.call_soon_threadsafe(running.cancel)
        # Ctrl-C in a terminal reaches the server that Prefect started too, and Prefect then waits minutes for it.
        leaving = threading.Timer(STOP_SECONDS, leave)
        leaving.daemon = True
        leaving.start()

    with _heeding_signals(stop):
        console = Console(stderr=True)
        if console.is_terminal:
            with RunProgress(run_dir, console) as progress:
                while not (await asyncio.wait([running], timeout=0.2))[0]:
                    progress.update()
                progress.update()
        result: dict[str, Any] = await running
    return result


@contextmanager
def _heeding_signals(stop: Callable[..., None]) -> Iterator[None]:
    """Have Ctrl-C and SIGTERM call ``stop``, not by way of the loop: Prefect holds it up while it starts a server."""
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

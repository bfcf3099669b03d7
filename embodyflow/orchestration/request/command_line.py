"""``python -m flows.<name> key=value …``: run a flow from the command line, without starting a server first."""

import asyncio
import atexit
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn
from uuid import UUID

import httpx
from prefect import Flow, get_client
from prefect.exceptions import TerminationSignal
from prefect.flow_engine import run_flow_async
from prefect.settings import get_current_settings
from rich.console import Console

from embodyflow.config import RunConfig
from embodyflow.errors import (
    ClusterLostError,
    ConfigError,
    InfrastructureError,
    ServerLostError,
    StorageError,
    SweepError,
)
from embodyflow.orchestration.display.progress_bar import RunProgress
from embodyflow.orchestration.request.existing_run import continued
from embodyflow.orchestration.request.request import check, parse_arguments
from embodyflow.orchestration.request.usage import answer_help
from embodyflow.orchestration.server.availability import is_about
from embodyflow.orchestration.server.events import deliver_events
from embodyflow.orchestration.server.prefect_home import check_home
from embodyflow.orchestration.server.temporary_server import connect
from embodyflow.orchestration.watchers.orphans import start_flow_watcher
from embodyflow.record.run_folder import RunFolder

STOPPED = 128 + signal.SIGINT
"""Exit code of a stopped run."""

RAY_EXITS = (1, signal.SIGTERM)
"""Codes with which Ray's handlers of SIGTERM exit where they have replaced ours."""

FLOW_RUN_VARIABLE = "EMBODYFLOW_FLOW_RUN"
"""Variable with the id of the flow run that this process carries out, which a sweep has created."""

EVENTS_SECONDS = 60.0
"""Seconds for Prefect's client to send what it holds when a flow has ended."""

STOP_SECONDS = 8.0
"""Seconds for a stopped run to end its processes and report to Prefect; its watcher needs a few more."""


def main(flow: Flow[..., Any]) -> None:
    """Check the command line, run the flow, print its result and exit."""
    answer_help(
        flow,
        sys.argv[1:],
        "if_exists=resume continues the run of that run_id if it exists, for commands that a scheduler gives again. "
        "Every other key=value overrides the experiment's configuration in Hydra's grammar, such as trainer.epochs=2; "
        f"`embodyflow config --flow {flow.name} experiment=push` shows all keys and their meanings.",
    )
    try:
        request = continued(parse_arguments(sys.argv[1:], flow.name))
        config = check(request, starts=True)
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    parameters = request.parameters()
    if request.resume is None:
        parameters["run_id"] = config.run_id
    hint = f"stopped; continue with resume={config.run_id}"
    try:
        summary = run_flow(
            flow,
            parameters,
            config,
            lambda: hint if RunFolder(config.run_dir).checkpoints.committed() else "stopped",
            finished=lambda: _finished(config),
        )
    except ConfigError as error:  # only the cluster can detect some mistakes, such as too few GPUs
        print(error, file=sys.stderr)
        sys.exit(2)
    except ClusterLostError as error:
        print(error, file=sys.stderr)
        _exit_without_destructors(1)
    except (StorageError, InfrastructureError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    print(config.summary_line(summary))
    print(f"run_dir={config.run_dir}")


def _finished(config: RunConfig) -> dict[str, Any] | None:
    """Return the summary of a run that has made all its iterations; ``None`` for any other."""
    summary = RunFolder(config.run_dir).summary()
    return summary if summary is not None and summary["iterations"] == config.iterations else None


def _exit_without_destructors(code: int) -> NoReturn:
    """Run the exit handlers and exit. Ray's destructors crash while its threads still wait for a lost head."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_flow(
    flow: Flow[..., Any],
    parameters: dict[str, Any],
    config: RunConfig | None,
    if_stopped: Callable[[], str],
    stop_seconds: float = STOP_SECONDS,
    finished: Callable[[], dict[str, Any] | None] = lambda: None,
) -> dict[str, Any]:
    """Run a flow in this process and return its result; a signal stops the flow and exits with code 130.

    Args:
        flow: Flow to run.
        parameters: Parameters of the flow.
        config: Configuration of the run whose progress a terminal shows; ``None`` shows none.
        if_stopped: Function that returns the message to print after a signal.
        stop_seconds: Time that a stopped flow has to end its processes and report to Prefect.
        finished: Function that returns the result that the flow has written, for a flow that cannot report it to
            Prefect; ``None`` if it has written none.

    Raises:
        ConfigError: No folder can be written in which Prefect would start its server.
        ServerLostError: The Prefect server does not answer, and the flow has written no result.
    """
    check_home(os.environ)
    start_flow_watcher()
    logging.getLogger("prefect.flow_runs").addFilter(_without_traceback)

    def leave() -> None:
        """Exit at once, as if killed; the watcher ends the processes that the flow started."""
        print(if_stopped(), file=sys.stderr, flush=True)
        os._exit(STOPPED)

    try:
        result = asyncio.run(_run(flow, parameters, config, leave, stop_seconds))
        if dropped := deliver_events(EVENTS_SECONDS):
            print(f"the Prefect server missed {dropped} reports of task runs in {EVENTS_SECONDS:g} s", file=sys.stderr)
        return result
    except httpx.TransportError as error:
        deliver_events(0)
        if not is_about(error, address := str(get_current_settings().api.url)):
            raise
        lost = ServerLostError(f"the Prefect server at {address} does not answer: {error or repr(error)}")
        if (written := finished()) is None:
            raise lost from error
        print(lost, file=sys.stderr)
        return written
    except (KeyboardInterrupt, asyncio.CancelledError, TerminationSignal, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code not in RAY_EXITS:
            raise  # a function of the user's has ended the process, perhaps with a message
        print(if_stopped(), file=sys.stderr)
        sys.exit(STOPPED)
    finally:
        gc.freeze()  # a last garbage collection at exit would take another second


def _without_traceback(record: logging.LogRecord) -> bool:
    """Remove the traceback of an error from Prefect's log if its message is enough."""
    if record.exc_info and isinstance(record.exc_info[1], ConfigError | StorageError | ClusterLostError | SweepError):
        record.exc_info = None
    return True


async def _run(
    flow: Flow[..., Any],
    parameters: dict[str, Any],
    config: RunConfig | None,
    leave: Callable[[], None],
    stop_seconds: float,
) -> dict[str, Any]:
    """Run the flow, with a progress bar on a terminal.

    Ctrl-C and SIGTERM cancel the flow, so that its ``finally`` blocks stop what it started.
    """
    running, loop = asyncio.ensure_future(_connect_and_run(flow, parameters)), asyncio.get_running_loop()

    # Prefect waits minutes for a server that does not answer.
    leaving = threading.Timer(stop_seconds, leave)
    leaving.daemon = True

    def cancel() -> None:
        if not running.cancelling():  # a second cancellation would interrupt what ends after the first
            running.cancel()

    def stop(*_: Any) -> None:
        if leaving.ident is None:
            leaving.start()
            loop.call_soon_threadsafe(cancel)

    with _handle_signals(stop, loop):
        console = Console(stderr=True)
        if config is not None and console.is_terminal:
            with RunProgress(config.run_dir, console, config.headline, config.iterations) as progress:
                while not (await asyncio.wait([running], timeout=0.2))[0]:
                    progress.update()
                progress.update()
        result: dict[str, Any] = await running
    return result


async def _connect_and_run(flow: Flow[..., Any], parameters: dict[str, Any]) -> dict[str, Any]:
    # This process imports torch and Ray while the server starts in another one.
    importing = asyncio.create_task(asyncio.to_thread(import_module, "embodyflow.orchestration.run.open_run"))
    await connect()
    await importing
    created = os.environ.pop(FLOW_RUN_VARIABLE, None)
    if created is None:
        result: dict[str, Any] = await flow(**parameters)
        return result
    async with get_client() as client:
        flow_run = await client.read_flow_run(UUID(created))
    return await run_flow_async(flow, flow_run=flow_run, parameters=parameters)  # type: ignore[return-value]


@contextmanager
def _handle_signals(stop: Callable[..., None], loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Call ``stop`` on Ctrl-C and SIGTERM, even while the event loop is blocked.

    Prefect and Ray replace the handler of SIGTERM by ones that raise an exception wherever the main thread is, and one
    in a callback or a destructor is lost. The event loop learns of the signal nevertheless.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    loop.add_signal_handler(signal.SIGTERM, stop)
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        for number, handler in before.items():
            signal.signal(number, handler)

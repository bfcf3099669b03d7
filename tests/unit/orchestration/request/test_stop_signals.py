"""A signal ends a flow that runs from the command line, also where a library has replaced the handler."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from waiting import eventually

# One process imports Prefect, which takes seconds, and a fork of it runs each flow.
FLOWS = """
import asyncio, os, signal, sys
from prefect.exceptions import TerminationSignal
from embodyflow.orchestration.request import command_line

def raise_termination(signum, _):
    raise TerminationSignal(signal=signum)

async def connect():
    pass

async def linger():
    try:
        await asyncio.sleep(60)
    finally:
        print("lingers", flush=True)
        await asyncio.sleep(60)

async def flow():
    if handler == "lingers":  # its end waits for a task
        asyncio.ensure_future(linger())
        await asyncio.sleep(0)
        return
    if handler == "ends":
        sys.exit("the licence has expired")
    if handler == "replaced":  # by one whose exception is lost
        signal.signal(signal.SIGTERM, lambda *_: None)
    if handler.isdigit():  # by one as Ray's
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(handler)))
    if handler == "prefect":
        signal.signal(signal.SIGTERM, raise_termination)
    # Where the signal finds the flow's own code at work, the handler's exception ends that and not the wait below.
    asyncio.get_running_loop().call_later(0.1, lambda: print("ready", flush=True))
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.2)
        print("cleaned up", flush=True)

handlers = {}
for handler in sys.argv[1:]:
    pid = os.fork()
    if pid == 0:
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{handler}.{name}", os.O_WRONLY | os.O_CREAT), descriptor)
        command_line.connect = connect
        command_line.run_flow(flow, {}, None, lambda: "stopped")
        os._exit(99)  # not reached
    handlers[pid] = handler
    print(pid, flush=True)
for _ in handlers:
    pid, status = os.wait()
    print(handlers[pid], os.waitstatus_to_exitcode(status), flush=True)
"""
HANDLERS = ("own", "replaced", "1", "15", "prefect")


@dataclass(frozen=True)
class Ended:
    """A flow that has ended."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Run a flow with each handler and one that ends by itself; send SIGTERM to all but the last."""
    folder: Path = tmp_path_factory.mktemp("flows")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", FLOWS, *HANDLERS, "lingers", "ends"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment) as process:
        assert process.stdout is not None
        pids = {handler: int(process.stdout.readline()) for handler in (*HANDLERS, "lingers", "ends")}
        for handler in (*HANDLERS, "lingers"):
            out = folder / f"{handler}.out"
            assert eventually(lambda out=out: out.exists() and out.read_text() in ("ready\n", "lingers\n"), seconds=60)
            os.kill(pids[handler], signal.SIGTERM)
        codes = dict(line.split() for line in process.communicate(timeout=60)[0].splitlines())
    texts = {name: [(folder / f"{name}.{kind}").read_text() for kind in ("out", "err")] for name in pids}
    return {name: Ended(int(codes[name]), *texts[name]) for name in pids}


@pytest.mark.parametrize("handler", HANDLERS)
def test_sigterm_ends_a_flow_once_whoever_handles_it(handler: str, ended: dict[str, Ended]) -> None:
    flow = ended[handler]
    assert (flow.code, flow.out) == (130, "ready\ncleaned up\n") and flow.err.splitlines()[-1] == "stopped", flow.err


def test_a_flow_that_a_function_ends_is_not_said_to_be_stopped(ended: dict[str, Ended]) -> None:
    flow = ended["ends"]
    assert flow.code == 1 and flow.err.splitlines()[-1] == "the licence has expired"


def test_sigterm_ends_a_process_that_waits_for_a_task_of_a_finished_flow(ended: dict[str, Ended]) -> None:
    assert ended["lingers"].code == -signal.SIGTERM and ended["lingers"].out == "lingers\n"

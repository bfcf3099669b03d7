"""A signal ends a flow that runs from the command line, also where a library has replaced the handler."""

import signal
import subprocess
import sys

import pytest

FLOW = """
import asyncio, signal, sys
from prefect.exceptions import TerminationSignal
from embodyflow.orchestration.request import command_line

def raise_termination(signum, _):
    raise TerminationSignal(signal=signum)

async def connect():
    pass

async def flow():
    if sys.argv[1] == "replaced":  # by one whose exception is lost
        signal.signal(signal.SIGTERM, lambda *_: None)
    if sys.argv[1].isdigit():  # by one as Ray's
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(sys.argv[1])))
    if sys.argv[1] == "prefect":
        signal.signal(signal.SIGTERM, raise_termination)
    # Where the signal finds the flow's own code at work, the handler's exception ends that and not the wait below.
    asyncio.get_running_loop().call_later(0.1, lambda: print("ready", flush=True))
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.2)
        print("cleaned up", flush=True)

command_line.connect = connect
command_line.run_flow(flow, {}, None, lambda: "stopped")
"""


@pytest.mark.parametrize("handler", ["own", "replaced", "1", "15", "prefect"])
def test_sigterm_ends_a_flow_once_whoever_handles_it(handler: str) -> None:
    command = [sys.executable, "-c", FLOW, handler]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "cleaned up\n") and err.splitlines()[-1] == "stopped", err


ENDING = """
import sys
from embodyflow.orchestration.request import command_line

async def connect():
    pass

async def flow():
    sys.exit("the licence has expired")

command_line.connect = connect
command_line.run_flow(flow, {}, None, lambda: "stopped")
"""


def test_a_flow_that_a_function_ends_is_not_said_to_be_stopped() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and ended.stderr.splitlines()[-1] == "the licence has expired"

"""A signal ends a command wherever Python is at that moment."""

import signal
import subprocess
import sys

import pytest

PLACES = {
    "code": "work()",
    "destructor": "Slow()",
    "weak reference": "held = Empty(); reference = weakref.ref(held, lambda _: work()); del held",
    "fork": "os.register_at_fork(after_in_parent=work); os.fork() or os._exit(0)",
}

COMMAND = """
import os, sys, time, weakref
from embodyflow.stack.signals import exit_on_signals

def work():
    print("at work", flush=True)
    time.sleep(0.5)

class Empty:
    pass

class Slow:
    def __del__(self):
        work()

exit_on_signals()
try:
    {place}
    time.sleep(30)
finally:
    time.sleep(0.3)
    print("clean", flush=True)
"""


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_once_and_cleanly(place: str, signum: int) -> None:
    command = [sys.executable, "-c", COMMAND.format(place=place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "at work\n"
            process.send_signal(signum)
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()  # nothing to do unless the test fails
    assert (process.returncode, out) == (128 + signum, "clean\n")
    assert err == f"{signal.Signals(signum).name}: stopping …\n"


def test_other_errors_of_destructors_are_still_shown() -> None:
    command = [sys.executable, "-c", COMMAND.format(place="Slow.__del__ = lambda _: 1 / 0; Slow(); sys.exit()")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0 and "ZeroDivisionError" in done.stderr

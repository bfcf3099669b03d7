"""Stopping processes with all their descendants, even if these ignore signals; claiming ports."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from local_stack import all_gone
from waiting import eventually

from embodyflow.orchestration.watchers.orphans import marked_processes
from embodyflow.process.ports import claim_port, free_port
from embodyflow.stack.processes import (
    STACK_VARIABLE,
    find_process,
    start_process,
    stop_processes,
)

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ignoring = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", ignoring])
print(child.pid, flush=True)
time.sleep(60)
"""


def start(tmp_path: Path, code: str, **env: str) -> psutil.Popen:
    return start_process([sys.executable, "-c", code], log=tmp_path / "log", env=os.environ | env, cwd=tmp_path)


def test_a_process_that_ignores_sigterm_dies_with_its_child(tmp_path: Path) -> None:
    process = start(tmp_path, STUBBORN)
    assert eventually(lambda: (tmp_path / "log").read_text().strip())
    child = psutil.Process(int((tmp_path / "log").read_text()))

    stop_processes([process], grace=0.2)

    assert process.poll() == -signal.SIGKILL
    assert eventually(lambda: all_gone([child]), 2.0)


def test_stopping_a_process_that_obeys_sigterm_takes_no_grace_period(tmp_path: Path) -> None:
    process = start(tmp_path, "import time; time.sleep(60)")
    began = time.monotonic()
    stop_processes([process], grace=30.0)
    assert process.poll() == -signal.SIGTERM
    assert time.monotonic() - began < 5.0


def test_a_child_obeys_sigint_even_if_its_parent_ignores_it(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = start(tmp_path, "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)")
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.wait(timeout=10) == 0
    assert (tmp_path / "log").read_text() == "True\n"


def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent_code = f"""
import os, sys, time
from pathlib import Path
from embodyflow.stack.processes import start_process
child = start_process([sys.executable, "-c", "import time; time.sleep(60)"], log=Path("child"), env=os.environ,
                      cwd=Path({str(tmp_path)!r}))
print(child.pid, flush=True)
time.sleep(60)
"""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    parent = subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE, env=env, cwd=tmp_path)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))

    parent.kill()
    parent.communicate()

    assert eventually(lambda: all_gone([child]))


def test_a_child_that_ignores_signals_ends_when_a_watched_parent_is_killed(tmp_path: Path) -> None:
    """Check that its own child ends too, and that a process with another mark stays alive."""
    parent_code = f"""
import os, sys, time
from pathlib import Path
from embodyflow.stack.processes import STACK_VARIABLE, start_process
from embodyflow.orchestration.watchers.orphans import start_watcher
env = os.environ | {{STACK_VARIABLE: {str(tmp_path)!r}}}
watcher = start_watcher(STACK_VARIABLE, env)
start_process([sys.executable, "-c", {STUBBORN!r}], log=Path("child"), env=env, cwd=Path({str(tmp_path)!r}))
print(watcher.pid, flush=True)
time.sleep(60)
"""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    other = start(tmp_path, "import time; time.sleep(60)", **{STACK_VARIABLE: "other"})
    with subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE, env=env, cwd=tmp_path) as parent:
        assert parent.stdout is not None
        watcher = psutil.Process(int(parent.stdout.readline()))
        assert eventually(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text().strip())
        family = psutil.Process(parent.pid).children(recursive=True)
        assert len(family) == 3 and watcher in family
        parent.kill()
    try:
        assert eventually(lambda: all_gone(family), 10.0)
        assert not all_gone([other])
    finally:
        stop_processes([other], grace=1.0)


def test_a_child_that_names_itself_ends_when_a_flow_is_killed(tmp_path: Path) -> None:
    """Ray's agents do, and outlived a killed flow by a minute: a new name overwrites the environment with the mark."""
    pytest.importorskip("setproctitle", reason="no process names itself without it")
    child_code = "import setproctitle, time; setproctitle.setproctitle('ray::Agent'); time.sleep(60)"
    parent_code = f"""
import subprocess, sys, time
from embodyflow.orchestration.watchers.orphans import start_flow_watcher
start_flow_watcher()
print(subprocess.Popen([sys.executable, "-c", {child_code!r}], start_new_session=True).pid, flush=True)
time.sleep(60)
"""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    with subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE, env=env, cwd=tmp_path) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert eventually(lambda: child.cmdline()[0] == "ray::Agent")
        parent.kill()
    assert eventually(lambda: all_gone([child]), 10.0)


def test_processes_of_a_stack_are_found_by_their_mark(tmp_path: Path) -> None:
    mine = start(tmp_path, "import time; time.sleep(60)", **{STACK_VARIABLE: "mine"})
    other = start(tmp_path, "import time; time.sleep(60)", **{STACK_VARIABLE: "other"})
    try:
        assert eventually(lambda: mine.pid in [process.pid for process in marked_processes(STACK_VARIABLE, "mine")])
        assert other.pid not in [process.pid for process in marked_processes(STACK_VARIABLE, "mine")]
    finally:
        stop_processes([mine, other], grace=1.0)
    assert eventually(lambda: marked_processes(STACK_VARIABLE, "mine") == [])


def test_a_reused_pid_is_not_taken_for_the_process() -> None:
    me = psutil.Process()
    assert find_process(me.pid, me.create_time()) == me
    assert find_process(me.pid, me.create_time() - 60.0) is None


def test_a_port_in_use_is_replaced_by_a_free_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) != port
    assert free_port(port) == port


def test_a_claimed_port_is_not_chosen_twice() -> None:
    preferred = free_port(0)
    port, claim = claim_port(preferred)
    other, other_claim = claim_port(preferred)
    with other_claim:
        assert port == preferred != other
    claim.close()
    again, claim = claim_port(preferred)
    claim.close()
    assert again == preferred


def test_the_claim_of_a_killed_process_is_released() -> None:
    preferred = free_port(0)
    command = f"""
import time
from embodyflow.process.ports import claim_port
port, claim = claim_port({preferred})  # the variable keeps the claim open
print(port, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{preferred}\n"
        port, claim = claim_port(preferred)
        claim.close()
        assert port != preferred
        process.kill()
    port, claim = claim_port(preferred)
    claim.close()
    assert port == preferred

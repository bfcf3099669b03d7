"""The memory of a process counts its children, but not what it shares."""

import os
import subprocess
import sys

from embodyflow.process.memory import private_bytes

CHILD = "x = bytearray(60_000_000); print('ready', flush=True); input()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"
SHARED = "import mmap; x = mmap.mmap(-1, 60_000_000); x.write(b'x' * 60_000_000); print('ready', flush=True); input()"


def used_by(code: str) -> float:
    """Return the megabytes that a process uses once it, or its child, has printed a line."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        used = private_bytes(process.pid) / 1e6
        process.communicate(b"\n")
    return used


def test_children_count() -> None:
    assert 60 <= used_by(CHILD) < 90
    assert 60 <= used_by(PARENT) < 120


def test_shared_memory_does_not_count() -> None:
    assert used_by(SHARED) < 30


def test_a_process_that_has_ended_uses_nothing() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert private_bytes(process.pid) == 0  # a zombie
    assert private_bytes(process.pid) == 0

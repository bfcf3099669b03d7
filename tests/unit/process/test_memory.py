"""The memory of a process counts its children, but not what it shares."""

import os
import subprocess
import sys

import pytest

from embodyflow.process import memory
from embodyflow.process.memory import kernel_kills, private_bytes

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


@pytest.mark.parametrize(
    ("counters", "kills"), [(b"pgfault 12\noom_kill 3\nswap_ra 0\n", 3), (b"pgfault 12\n", 0), (b"", 0)]
)
def test_processes_that_the_kernel_killed(counters: bytes, kills: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_read", {"/proc/vmstat": counters}.get)
    assert kernel_kills() == kills

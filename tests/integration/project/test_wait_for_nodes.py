"""The wait for the nodes of a job while Ray's processes are slow to answer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import ROOT

from embodyflow.process.ports import listen_on

pytestmark = pytest.mark.integration

RAY = """
import os, pathlib
calls = pathlib.Path(__file__).with_name("calls")
number = len(calls.read_text()) if calls.exists() else 0
calls.write_text("x" * (number + 1))

def init(**_):
    if number == 0:
        os._exit(1)  # as Ray's core worker does if the node it joins is late
    if number == 1:
        raise ConnectionError("late")

def nodes():
    return [{"Alive": True}, {"Alive": number > 2}]
"""
"""A stand-in for Ray whose first node is late twice, and whose second node joins later still."""


def wait(folder: Path, num_nodes: int, step: int) -> subprocess.CompletedProcess[str]:
    (folder / "ray.py").write_text(RAY)
    command = [sys.executable, "deployments/slurm/wait_for_nodes.py", str(num_nodes), str(step)]
    with listen_on(0) as listener:
        env = os.environ | {"RAY_ADDRESS": f"127.0.0.1:{listener.getsockname()[1]}", "PYTHONPATH": str(folder)}
        return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_a_node_that_is_late_is_waited_for(tmp_path: Path) -> None:
    waited = wait(tmp_path, 2, os.getpid())
    assert waited.returncode == 0, waited.stderr
    assert (tmp_path / "calls").read_text() == "xxxx"


def test_a_wait_ends_with_the_process_that_runs_ray(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    waited = wait(tmp_path, 3, ended.pid)
    assert waited.returncode != 0
    assert "ProcessLookupError" in waited.stderr

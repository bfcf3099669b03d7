"""A run whose Prefect server is gone for good trains to its end, and its command ends and says so."""

import json
import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest
from servers import PrefectServer
from small_runs import ROOT, SMALL_CONTROL
from waiting import eventually

pytestmark = pytest.mark.integration

# The time limits are minutes otherwise. Each event that Prefect's client cannot send takes it seven seconds.
COMMAND = """
from embodyflow.orchestration.display import artifacts
from embodyflow.orchestration.request import command_line
from embodyflow.orchestration.server import iteration_runs
from flows.ppo import ppo

artifacts.FINAL_TIMEOUT_SECONDS = iteration_runs.FINAL_TIMEOUT_SECONDS = 0.5
command_line.main(ppo)
"""
WORDS = (*SMALL_CONTROL, "iterations=30", "run_id=mine")


def num_lines(path: Path) -> int:
    """Return the number of lines of a file, 0 if it does not exist."""
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.timeout(300)
def test_the_command_of_a_finished_run_prints_its_result(tmp_path: Path) -> None:
    server = PrefectServer(tmp_path)
    env = {**os.environ, "PREFECT_API_URL": server.url, "PREFECT_CLIENT_MAX_RETRIES": "0"}
    command = [sys.executable, "-c", COMMAND, *WORDS, f"run_root={tmp_path}"]
    metrics = tmp_path / "mine" / "metrics.jsonl"
    try:
        server.start()
        run = subprocess.Popen(command, cwd=ROOT, env=env, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True)
        assert eventually(lambda: run.poll() is not None or num_lines(metrics) >= 2, 120) and run.poll() is None
    finally:
        server.stop()
    out, err = run.communicate(timeout=150)

    assert run.returncode == 0, err
    summary = json.loads((tmp_path / "mine" / "summary.json").read_text())
    assert summary["iterations"] == 30 and out.splitlines()[-1] == f"run_dir={tmp_path / 'mine'}", out
    assert f"the Prefect server at {server.url} does not answer: All connection attempts failed" in err.splitlines()
    events = [line for line in err.splitlines() if "failed to process item" in line]
    assert 1 <= len(events) <= 3 and all(len(line) < 200 for line in events), events


def test_a_flow_without_a_server_says_so_in_one_line(tmp_path: Path) -> None:
    server = PrefectServer(tmp_path)  # never started
    env = {**os.environ, "PREFECT_API_URL": server.url, "PREFECT_CLIENT_MAX_RETRIES": "0"}
    command = [sys.executable, "-m", "flows.ppo", *WORDS, f"run_root={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"the Prefect server at {server.url} does not answer: All connection attempts failed; start it, or unset "
        "PREFECT_API_URL\n"
    )

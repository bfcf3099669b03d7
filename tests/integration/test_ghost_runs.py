"""A process that ends without a report leaves no flow run that shows as running."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from local_stack import post
from waiting import eventually

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
WITHIN_SECONDS = 15.0

# Blocks the event loop within an iteration, as a library does that connects to a machine that does not answer.
FLOW = """
import time
from pathlib import Path
from prefect import flow
from embodyflow.orchestration.request.command_line import run_flow
from embodyflow.orchestration.watchers.flow_run_watch import watch_flow_run

@flow(name="iteration", flow_run_name="inner")
async def iteration():
    Path("runs").touch()
    time.sleep(1000)

@flow(flow_run_name="outer")
async def ghost():
    watch_flow_run()
    await iteration()

run_flow(ghost, {}, Path("none"), lambda: "stopped")
"""


def start(folder: Path, **env: str) -> subprocess.Popen[bytes]:
    """Start the flow in a folder and wait until its iteration runs."""
    (folder / "ghost.py").write_text(FLOW)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PREFECT_HOME": str(folder / "home"), **env}
    process = subprocess.Popen([sys.executable, "ghost.py"], cwd=folder, env=env, stderr=subprocess.DEVNULL)
    assert eventually((folder / "runs").exists, 200.0)
    return process


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_the_watcher_closes_the_run_of_a_process_that_cannot(
    tmp_path: Path, prefect_api: str, signum: signal.Signals
) -> None:
    process = start(tmp_path, PREFECT_API_URL=prefect_api)
    open_runs = {"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}, "name": {"any_": ["outer", "inner"]}}}
    assert len(post(f"{prefect_api}/flow_runs/filter", open_runs)) == 2
    process.send_signal(signum)
    assert eventually(lambda: post(f"{prefect_api}/flow_runs/filter", open_runs) == [], WITHIN_SECONDS)
    process.wait(10)


def test_the_run_is_closed_in_the_database_before_its_temporary_server_ends(tmp_path: Path) -> None:
    environment = dict.fromkeys(("PREFECT_API_URL", "PREFECT_API_AUTH_STRING"), "")
    process = start(tmp_path, **environment)
    process.kill()
    process.wait(10)

    def states() -> dict[str, str]:
        with sqlite3.connect(f"file:{tmp_path}/home/prefect.db?mode=ro", uri=True) as database:
            return dict(database.execute("select name, state_type from flow_run"))

    assert eventually(lambda: states() == {"outer": "CRASHED", "inner": "CRASHED"}, WITHIN_SECONDS), states()

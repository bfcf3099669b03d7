"""A process that ends without a report leaves no flow run that shows as running."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import local_stack
import pytest
from local_stack import Project, all_gone, post
from servers import prefect_server
from waiting import eventually

from embodyflow.stack.heartbeats import SILENCE_SECONDS

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
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


DEPLOYED = """
    async with iteration_runs(iteration) as runs:
        await runs.run(1)

from embodyflow.orchestration.server.iteration_runs import iteration_runs

@flow(name="iteration")
async def iteration(index: int):
    Path("runs").touch()
    await asyncio.sleep(1000)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_server_closes_a_run_when_nothing_but_the_server_is_left(tmp_path: Path) -> None:
    """Flow, watchers, Prefect worker, Ray and launcher are killed at once, as when their machine stops."""
    project = Project(tmp_path / "project")
    (project.root / "flows" / "grpo.py").write_text(local_stack.FLOW.partition("    folder = ")[0] + DEPLOYED)
    names = ("ghost", "iteration-1")
    with prefect_server(tmp_path) as url:
        project.env["PREFECT_API_URL"] = url
        try:
            up = project.embodyflow("up", "--detach")
            assert up.returncode == 0, up.stderr
            project.prefect("deployment", "run", "grpo/embodied", "--params", json.dumps({"run_id": "ghost"}))
            assert eventually((project.root / "runs").exists, 120.0)
            family = [project.launcher(), *project.launcher().children(recursive=True)]
            assert sum("flow_run_closing" in str(each.cmdline()) for each in family) == 1
            for each in family:
                each.suspend()  # so that none can report the end of another
            for each in family:
                each.kill()
            assert eventually(lambda: all_gone(family), 10.0)
            assert all(project.flow_run("RUNNING", name) for name in names)
            within = SILENCE_SECONDS + 30.0
            assert eventually(lambda: all(project.flow_run("CRASHED", name) for name in names), within)
        finally:
            project.embodyflow("down")
    assert project.leftovers() == []

"""A pod that runs a flow is evicted, and another one starts with the same command: the outcome stays bit-identical."""

import subprocess
from pathlib import Path

import psutil
import pytest
from local_stack import Project
from pods import FlowRun, evict
from small_runs import Runs
from waiting import eventually, finish

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

ITERATIONS = 3
MANY = 8
"""Iterations that last until a second pod has started; the run trains in all of them."""


def test_the_next_pod_of_a_job_resumes_the_run(tmp_path: Path, prefect_api: str) -> None:
    """Nobody has told Prefect of the eviction, so the flow run is still in state Running when the next pod starts."""
    Runs(tmp_path, prefect_api).run("undisturbed", f"iterations={ITERATIONS}")
    project = Project(tmp_path / "project", trains=True)
    flow_run = FlowRun(project, prefect_api, "evicted", ITERATIONS)
    pod = flow_run.start_pod()
    committed = project.root / "runs" / "evicted" / "checkpoints" / "iteration-000001"
    assert eventually(lambda: committed.exists() or pod.poll() is not None, 400.0)
    assert committed.exists(), finish(pod)
    assert any("flow_run_closing" in str(each.cmdline()) for each in psutil.Process(pod.pid).children(recursive=True))
    evict(pod)
    assert flow_run.state() == "RUNNING"
    output = finish(flow_run.start_pod())
    assert flow_run.state() == "COMPLETED", output[-4000:]
    assert "resumed after iteration" in output
    resumed = Runs(project.root)
    resumed.assert_same_training("evicted", "../../runs/undisturbed")


def test_a_second_pod_waits_for_the_first(tmp_path: Path, prefect_api: str) -> None:
    """It continues the run of a pod that is evicted, and ends with one that finishes."""
    Runs(tmp_path, prefect_api).run("undisturbed", f"iterations={MANY}")
    project = Project(tmp_path / "project", trains=True)
    flow_run = FlowRun(project, prefect_api, "evicted", MANY)
    logs = [tmp_path / f"{name}.log" for name in ("first", "second", "third")]

    def start(log: Path) -> subprocess.Popen[str]:
        with log.open("w") as output:
            return flow_run.start_pod(output)

    def waits(log: Path) -> bool:
        return eventually(lambda: "another process executes this flow run" in log.read_text(), 120.0)

    first = start(logs[0])
    assert eventually((project.root / "runs" / "evicted" / "checkpoints" / "iteration-000001").exists, 400.0)
    second = start(logs[1])
    assert waits(logs[1]) and first.poll() is None and flow_run.state() == "RUNNING"
    evict(first)
    assert eventually(lambda: "resumed after iteration" in logs[1].read_text(), 120.0)
    third = start(logs[2])
    assert [pod.wait(400) for pod in (second, third)] == [0, 0]
    assert flow_run.state() == "COMPLETED" and "resumed" not in logs[2].read_text()
    Runs(project.root).assert_same_training("evicted", "../../runs/undisturbed")
    assert not project.processes() and not list((project.root / "runs" / ".attempts").iterdir())

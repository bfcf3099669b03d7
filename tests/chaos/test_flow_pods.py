"""A pod that runs a flow is evicted, and another one starts with the same command: the outcome stays bit-identical."""

import json
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from local_stack import Project, all_gone, post
from small_runs import SMALL, Runs
from waiting import eventually, finish

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

ITERATIONS = 3


class FlowRun:
    """A flow run of a deployment whose work pool has no worker, as if the worker had just created its job.

    Args:
        project: Project with the deployment.
        api_url: Address of the Prefect server's API.
        run_id: Name of the run.
    """

    def __init__(self, project: Project, api_url: str, run_id: str) -> None:
        self._project, self._api_url = project, api_url
        project.env["PREFECT_API_URL"] = api_url
        project.prefect("work-pool", "create", "embodyflow", "--type", "process", "--overwrite")
        project.prefect("--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
        parameters = {"run_id": run_id, "iterations": ITERATIONS, "overrides": SMALL[2:], "seed": 1}
        output = project.prefect("deployment", "run", "grpo/embodied", "--params", json.dumps(parameters))
        [self.id] = re.findall(r"UUID: ([0-9a-f-]{36})", output)

    def state(self) -> str:
        found = post(f"{self._api_url}/flow_runs/filter", {"flow_runs": {"id": {"any_": [self.id]}}})
        return str(found[0]["state_type"])

    def start_pod(self) -> subprocess.Popen[str]:
        """Start the command of a job's pod."""
        command = [sys.executable, "-m", "prefect", "flow-run", "execute", self.id]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, cwd=self._project.root, env=self._project.env, text=True, **pipes)


def evict(pod: subprocess.Popen[str]) -> None:
    """Kill all processes of a pod at once, so that none of them reports the end of another."""
    family = [psutil.Process(pod.pid), *psutil.Process(pod.pid).children(recursive=True)]
    assert sum("flow_run_closing" in str(each.cmdline()) for each in family) == 1
    for each in family:
        each.suspend()
    for each in family:
        each.kill()
    pod.communicate()
    assert eventually(lambda: all_gone(family), 10.0)


def test_the_next_pod_of_a_job_resumes_the_run(tmp_path: Path, prefect_api: str) -> None:
    """Nobody has told Prefect of the eviction, so the flow run is still in state Running when the next pod starts."""
    Runs(tmp_path, prefect_api).run("undisturbed", f"iterations={ITERATIONS}")
    project = Project(tmp_path / "project", trains=True)
    flow_run = FlowRun(project, prefect_api, "evicted")
    pod = flow_run.start_pod()
    committed = project.root / "runs" / "evicted" / "checkpoints" / "iteration-000001"
    assert eventually(lambda: committed.exists() or pod.poll() is not None, 400.0)
    assert committed.exists(), finish(pod)
    evict(pod)
    assert flow_run.state() == "RUNNING"
    output = finish(flow_run.start_pod())
    assert flow_run.state() == "COMPLETED", output[-4000:]
    assert "resumed after iteration" in output
    resumed = Runs(project.root)
    resumed.assert_same_training("evicted", "../../runs/undisturbed")

"""Pods that run a flow run of a deployment, each a process with the command of a job."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import IO

import psutil
from local_stack import Project, all_gone, post
from small_runs import SMALL
from waiting import eventually


class FlowRun:
    """A flow run of a deployment whose work pool has no worker, as if the worker had just created its job.

    Args:
        project: Project with the deployment.
        api_url: Address of the Prefect server's API.
        run_id: Name of the run.
        iterations: Number of its iterations.
        deployment: Name of the deployment, ``flow/name``.
        words: Words ``key=value`` of the run.
    """

    def __init__(
        self,
        project: Project,
        api_url: str,
        run_id: str,
        iterations: int,
        deployment: str = "grpo/embodied",
        words: Sequence[str] = SMALL[2:],
    ) -> None:
        self._project, self._api_url = project, api_url
        project.env["PREFECT_API_URL"] = api_url
        project.prefect("work-pool", "create", "embodyflow", "--type", "process", "--overwrite")
        project.prefect("--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
        parameters = {"run_id": run_id, "iterations": iterations, "overrides": list(words), "seed": 1}
        output = project.prefect("deployment", "run", deployment, "--params", json.dumps(parameters))
        [self.id] = re.findall(r"UUID: ([0-9a-f-]{36})", output)

    def state(self) -> str:
        found = post(f"{self._api_url}/flow_runs/filter", {"flow_runs": {"id": {"any_": [self.id]}}})
        return str(found[0]["state_type"])

    def start_pod(self, output: IO[str] | int = subprocess.PIPE) -> subprocess.Popen[str]:
        """Start the command of a job's pod, with its output in a file or a pipe."""
        command = [sys.executable, "-m", "prefect", "flow-run", "execute", self.id]
        streams = {"stdout": output, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, cwd=self._project.root, env=self._project.env, text=True, **streams)


def evict(pod: subprocess.Popen[str]) -> list[psutil.Process]:
    """Kill all processes of a pod at once, so that none of them reports the end of another; return them."""
    family: list[psutil.Process] = []
    while new := [each for each in _family(pod.pid) if each not in family]:
        for each in new:
            each.suspend()
        family += new
    for each in family:
        each.kill()
    pod.communicate()
    assert eventually(lambda: all_gone(family), 10.0)
    return family


def _family(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]

"""The commands of the containers in ``deployments/``, as processes of this machine: together they run flows.

Containers have a network and folders of their own, so addresses are replaced here, and Prefect has SQLite.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from deployment_files import DEPLOYMENTS
from local_stack import Project
from server_ports import server_port
from small_runs import SMALL
from waiting import eventually

from embodyflow.orchestration.watchers.orphans import marked_processes
from embodyflow.process.ports import answers
from embodyflow.stack.processes import start_process, stop_processes

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("wget") is None, reason="needs wget, which the image has"),
]

COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOYMENTS / "compose" / "compose.yaml").read_text())["services"]
FLOW_JOB: dict[str, Any] = json.loads((DEPLOYMENTS / "kubernetes" / "base" / "flow-job.json").read_text())
MARK = "EMBODYFLOW_TEST"
HERE = ("--dashboard-agent-listen-port=0", "--metrics-export-port=0")
"""Options for several Ray nodes on one machine."""


@dataclass
class Containers:
    """The services, with the environment variables of their clients.

    Args:
        project: Project, in the place of the folder /app.
        prefect: Port of the Prefect server.
        ray: Port of the Ray head.
    """

    project: Project
    prefect: int = field(default_factory=server_port)
    ray: int = field(default_factory=server_port)

    def __post_init__(self) -> None:
        folder = self.project.root.parent
        subprocess.run(["bash", DEPLOYMENTS / "secrets.sh", folder], check=True, capture_output=True)
        self._secrets = folder / "secrets"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._common = self.project.env | {"PATH": path, MARK: str(folder)}
        client = {"PREFECT_API_URL": f"http://127.0.0.1:{self.prefect}/api", "RAY_ADDRESS": f"127.0.0.1:{self.ray}"}
        self.project.env = self.environment("prefect-client", "ray") | client

    def environment(self, *secrets: str) -> dict[str, str]:
        lines = [line for name in secrets for line in (self._secrets / f"{name}.env").read_text().splitlines()]
        return self._common | dict(line.split("=", 1) for line in lines)

    def start(self, name: str, command: list[str], env: dict[str, str]) -> psutil.Popen:
        log = self.project.root.parent / f"{name}.log"
        return start_process(command, log=log, env=env, cwd=self.project.root)

    def log(self, name: str) -> str:
        return (self.project.root.parent / f"{name}.log").read_text()


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    found = Containers(Project(tmp_path_factory.mktemp("containers") / "project", trains=True))
    sockets = tempfile.mkdtemp(prefix="ef-ray-")
    server = found.environment("prefect-server") | COMPOSE["prefect-server"]["environment"]
    del server["PREFECT_SERVER_DATABASE_CONNECTION_URL"], server["PREFECT_SERVER_UI_API_URL"]
    try:
        command = [*COMPOSE["prefect-server"]["command"][:-1], "127.0.0.1", f"--port={found.prefect}"]
        found.start("prefect-server", command, server)
        head = [*COMPOSE["ray-head"]["command"], f"--port={found.ray}", f"--temp-dir={sockets}"]
        found.start("ray-head", [*head, f"--ray-client-server-port={server_port()}", *HERE], found.environment("ray"))
        address = f"127.0.0.1:{found.ray}"
        assert eventually(lambda: answers(address), 120.0), found.log("ray-head")
        worker = [word.replace("ray-head:6379", address) for word in COMPOSE["ray-worker"]["command"]]
        found.start("ray-worker", [*worker, "--num-cpus=2", *HERE], found.environment("ray"))
        assert eventually(lambda: is_healthy(found), 120.0), found.log("prefect-server")
        yield found
    finally:
        stop_processes(marked_processes(MARK, found._common[MARK]), grace=10)
        shutil.rmtree(sockets, ignore_errors=True)


def is_healthy(containers: Containers) -> bool:
    """Run the health check of the Prefect server, which asks without the server's password."""
    check = COMPOSE["prefect-server"]["healthcheck"]["test"]
    command = [word.replace(":4200", f":{containers.prefect}") for word in check]
    return subprocess.run(command[1:], capture_output=True).returncode == 0


def submit(containers: Containers, run_id: str) -> str:
    """Submit a small run; return the id of its flow run."""
    parameters = {"run_id": run_id, "iterations": 1, "overrides": SMALL[2:], "seed": 1}
    output = containers.project.prefect("deployment", "run", "grpo/embodied", "--params", json.dumps(parameters))
    [found] = re.findall(r"UUID: ([0-9a-f-]{36})", output)
    return str(found)


def summary(containers: Containers, run_id: str) -> Path:
    return containers.project.root / "runs" / run_id / "summary.json"


def test_the_pod_of_a_flow_run_trains_on_the_ray_cluster(containers: Containers) -> None:
    """The init container's commands deploy, and the command of the job's container runs the flow."""
    template = containers.project.root / "flow-job.json"
    template.write_text(json.dumps(FLOW_JOB))
    pool = ["work-pool", "create", "embodyflow", "--type", "kubernetes", "--base-job-template", str(template)]
    containers.project.prefect(*pool, "--overwrite")
    containers.project.prefect("--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
    flow_run = submit(containers, "in-a-pod")
    [container] = FLOW_JOB["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]["containers"]
    arguments = FLOW_JOB["variables"]["properties"]["command"]["default"].split()
    env = containers.project.env | {"PREFECT__FLOW_RUN_ID": flow_run}
    pod = containers.start("pod", [*container["command"], *arguments], env)
    pod.wait(400)
    assert summary(containers, "in-a-pod").exists(), containers.log("pod")[-4000:]


def test_the_prefect_worker_of_compose_trains_on_the_ray_cluster(containers: Containers) -> None:
    command = [word.replace("$$", "$") for word in COMPOSE["prefect-worker"]["command"]]
    containers.project.prefect("work-pool", "delete", "embodyflow")  # that of Kubernetes
    worker = containers.start("prefect-worker", command, containers.project.env)
    assert eventually(containers.project.is_ready, 240.0), containers.log("prefect-worker")
    assert worker.is_running()
    submit(containers, "in-compose")
    assert eventually(summary(containers, "in-compose").exists, 400.0), containers.project.log()[-4000:]

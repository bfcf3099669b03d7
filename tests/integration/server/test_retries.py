"""A run on a real stack that fails, is retried and loses its process and worker gives the same result as any other."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from local_stack import ROOT, Project
from small_runs import SMALL, assert_trained
from waiting import eventually

from embodyflow.record.ledger import Ledger
from embodyflow.record.run_folder import RunFolder

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CHAOS = ROOT / "tests" / "chaos"
WORDS = (*SMALL[1:], "pipeline.custom_fn=faulty_nodes:graph")
BUGS = [
    {"iteration": 2, "node": "train_actor", "part": "bug"},
    {"iteration": 3, "node": "advantage", "part": "bug"},
]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path / "project", trains=True)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(BUGS))
    project.env |= {"PYTHONPATH": f"{ROOT}:{CHAOS}", "EMBODYFLOW_FAULTS": str(plan)}
    yield project
    project.embodyflow("down")


def submit(project: Project, deployment: str, run_id: str) -> None:
    parameters = {"run_id": run_id, "iterations": 8, "overrides": WORDS}
    project.prefect("deployment", "run", deployment, "--params", json.dumps(parameters))


def failed(project: Project, run_count: int) -> dict[str, Any]:
    """Wait until the run has failed in attempt ``run_count``; return it."""

    def found() -> bool:
        run = project.flow_run("FAILED", "disturbed")
        return run is not None and run["run_count"] == run_count

    assert eventually(found, 200.0), project.log()
    run = project.flow_run("FAILED", "disturbed")
    assert run is not None
    return run


def outcome(folder: RunFolder) -> tuple[Any, ...]:
    metrics = [{k: v for k, v in record.items() if not k.startswith("perf/")} for record in folder.metrics.read()]
    assert_trained(metrics)
    return json.loads(folder.summary_path.read_text())["weights_digest"], Ledger(folder.ledger_path).digest(), metrics


@pytest.mark.timeout(900)
def test_a_run_is_retried_by_command_and_ui_and_resumed_after_a_kill(project: Project) -> None:
    assert project.embodyflow("up", "--detach").returncode == 0
    folder = RunFolder(project.root / "runs" / "disturbed")
    submit(project, "grpo/embodied-nightly", "disturbed")

    run = failed(project, run_count=1)
    assert folder.checkpoints.committed()[-1] == 1
    project.prefect("flow-run", "retry", str(run["id"]))

    run = failed(project, run_count=2)
    assert folder.checkpoints.committed()[-1] == 2
    assert "resumed after iteration 1" in project.log()
    assert "rollout was done before: 16 rows read from disk" in project.log()
    # The request that the button in the UI sends.
    state = {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Retry from the UI"}
    answer = project.api(f"/flow_runs/{run['id']}/set_state", {"state": state, "force": False})
    assert answer["status"] == "ACCEPT", answer

    # Neither the worker nor the flow can report the end to the server; the stack notices that its worker is gone.
    assert eventually(lambda: folder.checkpoints.committed()[-1] >= 3, 200.0), project.log()
    driver = json.loads((folder.path / "processes.json").read_text())["driver"]
    processes: Any = project.state()["processes"]
    for pid in (processes["prefect-worker"], driver):
        psutil.Process(pid).send_signal(signal.SIGKILL)
    assert eventually(lambda: not project.leftovers(), 60.0), project.leftovers()
    assert not folder.summary_path.exists()

    assert project.embodyflow("up", "--detach").returncode == 0
    assert eventually(lambda: project.flow_run("COMPLETED", "disturbed"), 200.0), project.log()
    submit(project, "grpo/embodied", "undisturbed")
    assert eventually(lambda: project.flow_run("COMPLETED", "undisturbed"), 200.0), project.log()
    assert outcome(folder) == outcome(RunFolder(project.root / "runs" / "undisturbed"))

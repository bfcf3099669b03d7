"""A run on a real stack that is cancelled as by the button in the UI: all of its processes end."""

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from local_stack import Project, all_gone
from small_runs import SMALL, assert_trained, training_records
from waiting import eventually

from embodyflow.record.run_folder import RunFolder

pytestmark = pytest.mark.integration


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path / "project", trains=True)
    yield project
    project.embodyflow("down")


def weights(project: Project, name: str, **parameters: object) -> object:
    """Run to the end; return the weights digest."""
    project.prefect("deployment", "run", "grpo/embodied", "--params", json.dumps(parameters))
    assert eventually(lambda: project.flow_run("COMPLETED", name), 200.0), project.log()
    return json.loads((project.root / "runs" / name / "summary.json").read_text())["weights_digest"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_cancelled_run_ends_its_processes_stays_cancelled_and_can_be_resumed(project: Project) -> None:
    assert project.embodyflow("up", "--detach").returncode == 0
    parameters = {"run_id": "unwanted", "iterations": 500, "overrides": SMALL[1:]}
    project.prefect("deployment", "run", "grpo/embodied-nightly", "--params", json.dumps(parameters))
    folder = RunFolder(project.root / "runs" / "unwanted")
    assert eventually(lambda: folder.path.exists() and folder.checkpoints.committed()[-1:] >= [2], 200.0), project.log()
    working = [psutil.Process(pid) for pid in json.loads((folder.path / "processes.json").read_text()).values()]
    run = project.flow_run("RUNNING", "unwanted")
    assert run is not None and not all_gone(working)

    state = {"type": "CANCELLING", "name": "Cancelling", "message": "Cancelled from the UI"}
    answer = project.api(f"/flow_runs/{run['id']}/set_state", {"state": state, "force": False})
    assert answer["status"] == "ACCEPT", answer
    assert eventually(lambda: project.flow_run("CANCELLED", "unwanted"), 60.0), project.log()
    assert eventually(lambda: all_gone(working), 60.0), working
    assert project.is_ready()

    for words in (("down",), ("up", "--detach")):  # a new stack resumes crashed nightly runs, but not cancelled ones
        assert project.embodyflow(*words).returncode == 0
    last = folder.checkpoints.committed()[-1]
    lines = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    assert_trained(training_records(lines)[:2])
    resumed = weights(project, "unwanted", resume="unwanted", iterations=last + 1)
    assert project.flow_run("CANCELLED", "unwanted") is not None
    undisturbed = {"run_id": "undisturbed", "iterations": last + 1, "overrides": SMALL[1:]}
    assert resumed == weights(project, "undisturbed", **undisturbed)

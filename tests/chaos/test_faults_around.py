"""Prefect's server or worker dies or hangs at a node: the run ends as if neither had, and the server knows it."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from disturbed import HERE, ITERATIONS, JOBS, WORDS, Disturbed, Outcome, fault, outcome_of
from faulty_nodes import COMMIT, LANGUAGE_NODES, NODES
from local_stack import ROOT, Project, all_gone, post
from servers import PrefectServer
from waiting import eventually

from embodyflow.record.run_folder import RunFolder

pytestmark = [pytest.mark.integration, pytest.mark.slow]

NODES_OF = {"embodied": (*NODES, COMMIT), "language": (*LANGUAGE_NODES, COMMIT)}
EXPERIMENTS = {"embodied": "embodied", "language": "math"}
AWAY_SECONDS, SILENT_SECONDS = 5.0, 20.0
PATIENCE = 200.0

at_each_node = pytest.mark.parametrize(
    ("job", "node"), [(job, node) for job, nodes in NODES_OF.items() for node in nodes]
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    server = PrefectServer(tmp_path_factory.mktemp("mortal-server"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory, server: PrefectServer) -> dict[str, Disturbed]:
    """Runs of each job."""
    return {job: Disturbed(tmp_path_factory.mktemp(f"{job}-around"), server.url, job) for job in NODES_OF}


@pytest.fixture(scope="module")
def undisturbed(disturbed: dict[str, Disturbed]) -> dict[str, Outcome]:
    for runs in disturbed.values():
        runs.run("undisturbed")
    return {job: runs.outcome("undisturbed") for job, runs in disturbed.items()}


@at_each_node
def test_the_prefect_server_dies_at_a_node(
    server: PrefectServer, disturbed: dict[str, Disturbed], undisturbed: dict[str, Outcome], job: str, node: str
) -> None:
    run_id, death = f"{job}-{node}-server", fault(node, pid=server.process.pid)
    # The server must be started here: it dies with the thread that started it.
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(disturbed[job].outlives, undisturbed[job], run_id, death)
        assert eventually(lambda: all_gone([server.process]) or run.done(), PATIENCE)
        time.sleep(AWAY_SECONDS)
        server.start()
        run.result()
    assert ended_as(server, run_id) == ["COMPLETED"]


@pytest.mark.parametrize("node", ["rollout", "train_actor", COMMIT])
@pytest.mark.parametrize("job", NODES_OF)
def test_nothing_comes_back_from_the_prefect_server(
    server: PrefectServer, disturbed: dict[str, Disturbed], undisturbed: dict[str, Outcome], job: str, node: str
) -> None:
    """As where a network loses every packet: connections are neither refused nor closed, and nothing is answered."""
    run_id, silence = f"{job}-{node}-silence", fault(node, pid=server.process.pid, signal="SIGSTOP")
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(disturbed[job].outlives, undisturbed[job], run_id, silence)
        try:
            assert eventually(lambda: server.process.status() == psutil.STATUS_STOPPED or run.done(), PATIENCE)
            time.sleep(SILENT_SECONDS)
        finally:
            server.process.resume()
        run.result()
    assert ended_as(server, run_id) == ["COMPLETED"]


@pytest.mark.parametrize("job", NODES_OF)
def test_the_prefect_server_is_away_while_the_run_ends(
    server: PrefectServer, disturbed: dict[str, Disturbed], undisturbed: dict[str, Outcome], job: str
) -> None:
    """Evaluation, export and all that the UI shows of the whole run come after its last commit."""
    run_id, death = f"{job}-end-server", fault(COMMIT, iteration=3, pid=server.process.pid)
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(disturbed[job].outlives, undisturbed[job], run_id, death)
        summary = disturbed[job].runs.root / run_id / "summary.json"
        assert eventually(lambda: summary.exists() or run.done(), PATIENCE)
        time.sleep(AWAY_SECONDS)
        assert all_gone([server.process]) and not run.done()
        server.start()
        run.result()
    assert ended_as(server, run_id) == ["COMPLETED"]
    wanted = {"artifacts": {"key": {"like_": f"{run_id}-%"}}}
    shown = {str(each["key"]).removeprefix(f"{run_id}-") for each in post(f"{server.url}/artifacts/filter", wanted)}
    assert {"summary", "metrics", "learning-curve", "progress"} <= shown


def ended_as(server: PrefectServer, run_id: str) -> list[str]:
    wanted = {"flow_runs": {"name": {"any_": [run_id]}}}
    return [each["state_type"] for each in post(f"{server.url}/flow_runs/filter", wanted)]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("stack") / "project", trains=True)
    project.env |= {"PYTHONPATH": f"{ROOT}:{HERE}", "EMBODYFLOW_FAULTS": str(project.root / "plan.json")}
    yield project
    project.embodyflow("down")


@pytest.mark.timeout(600)
@at_each_node
def test_the_prefect_worker_dies_at_a_node_and_the_next_stack_ends_the_run(
    project: Project, undisturbed: dict[str, Outcome], job: str, node: str
) -> None:
    run_id = f"{job}-{node}"
    if not project.is_ready():
        assert project.embodyflow("up", "--detach").returncode == 0
    processes: Any = project.state()["processes"]
    plan = Path(project.env["EMBODYFLOW_FAULTS"])
    plan.write_text(json.dumps([fault(node, pid=processes["prefect-worker"])]))
    plan.with_name(f"{plan.name}.0").unlink(missing_ok=True)
    words = [word for word in (*JOBS[job][1], *WORDS, *ITERATIONS) if not word.startswith("experiment=")]
    parameters = {"run_id": run_id, "experiment": EXPERIMENTS[job], "overrides": words}
    project.prefect("deployment", "run", "grpo/embodied-nightly", "--params", json.dumps(parameters))

    assert eventually(lambda: not project.leftovers(), PATIENCE), project.leftovers()
    assert plan.with_name(f"{plan.name}.0").exists()
    assert project.embodyflow("up", "--detach").returncode == 0
    assert eventually(lambda: project.flow_run("COMPLETED", run_id), PATIENCE), project.log()
    assert outcome_of(RunFolder(project.root / "runs" / run_id)) == undisturbed[job]

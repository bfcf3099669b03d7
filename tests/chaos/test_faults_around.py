"""Prefect's server or worker dies or hangs at a node: the outcome stays bit-identical, and the server learns of it."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from faulty_nodes import COMMIT, LANGUAGE_NODES, NODES
from faulty_runs import HERE, ITERATIONS, JOBS, WORDS, FaultyRuns, Outcome, fault, outcome_of
from local_stack import ROOT, Project, all_gone, post
from servers import PrefectServer
from waiting import eventually

from embodyflow.record.run_folder import RunFolder

pytestmark = [pytest.mark.integration, pytest.mark.slow]

NODES_OF = {"embodied": (*NODES, COMMIT), "language": (*LANGUAGE_NODES, COMMIT)}
EXPERIMENTS = {"embodied": "embodied", "language": "math"}
DOWN_SECONDS, SILENT_SECONDS = 5.0, 20.0
TIMEOUT = 200.0

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
def faulty_runs(tmp_path_factory: pytest.TempPathFactory, server: PrefectServer) -> dict[str, FaultyRuns]:
    """Runs of each job."""
    return {job: FaultyRuns(tmp_path_factory.mktemp(f"{job}-around"), server.url, job) for job in NODES_OF}


@pytest.fixture(scope="module")
def undisturbed(faulty_runs: dict[str, FaultyRuns]) -> dict[str, Outcome]:
    for runs in faulty_runs.values():
        runs.run("undisturbed")
    return {job: runs.outcome("undisturbed") for job, runs in faulty_runs.items()}


@at_each_node
def test_the_prefect_server_dies_at_a_node(
    server: PrefectServer, faulty_runs: dict[str, FaultyRuns], undisturbed: dict[str, Outcome], job: str, node: str
) -> None:
    run_id, death = f"{job}-{node}-server", fault(node, pid=server.process.pid)
    # Start the server in this thread, because it dies with the thread that started it.
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(faulty_runs[job].assert_recovers, undisturbed[job], run_id, death)
        assert eventually(lambda: all_gone([server.process]) or run.done(), TIMEOUT)
        time.sleep(DOWN_SECONDS)
        server.start()
        run.result()
    assert ended_as(server, run_id) == ["COMPLETED"]


@pytest.mark.parametrize("node", ["rollout", "train_actor", COMMIT])
@pytest.mark.parametrize("job", NODES_OF)
def test_the_prefect_server_does_not_answer(
    server: PrefectServer, faulty_runs: dict[str, FaultyRuns], undisturbed: dict[str, Outcome], job: str, node: str
) -> None:
    """As on a network that drops all packets: connections are neither refused nor closed."""
    run_id, silence = f"{job}-{node}-silence", fault(node, pid=server.process.pid, signal="SIGSTOP")
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(faulty_runs[job].assert_recovers, undisturbed[job], run_id, silence)
        try:
            assert eventually(lambda: server.process.status() == psutil.STATUS_STOPPED or run.done(), TIMEOUT)
            time.sleep(SILENT_SECONDS)
        finally:
            server.process.resume()
        run.result()
    assert ended_as(server, run_id) == ["COMPLETED"]


@pytest.mark.parametrize("job", NODES_OF)
def test_the_prefect_server_is_down_while_the_run_ends(
    server: PrefectServer, faulty_runs: dict[str, FaultyRuns], undisturbed: dict[str, Outcome], job: str
) -> None:
    """The evaluation, the export and the final artifacts come after the last commit."""
    run_id, death = f"{job}-end-server", fault(COMMIT, iteration=3, pid=server.process.pid)
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(faulty_runs[job].assert_recovers, undisturbed[job], run_id, death)
        summary = faulty_runs[job].runs.root / run_id / "summary.json"
        assert eventually(lambda: summary.exists() or run.done(), TIMEOUT)
        time.sleep(DOWN_SECONDS)
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
def test_the_prefect_worker_dies_at_a_node_and_the_next_stack_completes_the_run(
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

    assert eventually(lambda: not project.leftovers(), TIMEOUT), project.leftovers()
    assert plan.with_name(f"{plan.name}.0").exists()
    assert project.embodyflow("up", "--detach").returncode == 0
    assert eventually(lambda: project.flow_run("COMPLETED", run_id), TIMEOUT), project.log()
    assert outcome_of(RunFolder(project.root / "runs" / run_id)) == undisturbed[job]

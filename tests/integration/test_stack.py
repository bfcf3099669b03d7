"""The local stack with real Ray and Prefect: it starts, is found, runs a flow, and leaves nothing behind."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
import yaml

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]

DEPLOYMENTS = yaml.safe_load((ROOT / "deployments" / "prefect.yaml").read_text())["deployments"]
NAMES = sorted(each["name"] for each in DEPLOYMENTS)

# Stands in for the real flows: same parameters, same files in the run's folder, no learning. A run of three iterations
# is killed in its second, once; a run that is taken up again has two left.
FLOW = """
import asyncio, json, os
from pathlib import Path
from prefect import flow
from flows.resumption import resume_after_crash

@flow(name="grpo", on_crashed=[resume_after_crash])
async def grpo(experiment: str = "embodied", iterations: int | None = None, seed: int | None = None,
               run_id: str | None = None, resume: str | None = None, overrides: list[str] = []):
    folder = Path("runs") / run_id
    resumed = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ray").write_text(os.environ["RAY_ADDRESS"])
    if overrides:
        raise ValueError(f"no {overrides[0]} here")
    for iteration in range(1, (2 if resumed else iterations) + 1):
        if (iteration, iterations, resumed) == (2, 3, False):
            os.kill(os.getpid(), 9)
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"iteration": iteration, "rollout/success_rate": 0.5}) + "\\n")
        await asyncio.sleep(0.2)
    summary = dict(run_id=run_id, success_rate_before=0.625, success_rate_after=1.0, num_goals=64, seed=seed,
                   train_seconds=83.2, iterations=iterations, weights_digest="0" * 64)
    (folder / "summary.json").write_text(json.dumps(summary))
"""


class Project:
    """A folder with the real deployments, the flow above under every name, and the ``embodyflow`` command."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "deployments").mkdir(parents=True)
        (root / "flows").mkdir()
        shutil.copy(ROOT / "deployments" / "prefect.yaml", root / "deployments")
        for name in {each["entrypoint"].partition(":")[2] for each in DEPLOYMENTS}:
            (root / "flows" / f"{name}.py").write_text(FLOW.replace("grpo", name))
        self.env = {**os.environ, "PYTHONPATH": str(ROOT), "PREFECT_HOME": str(root / "home")}
        for name in ("PREFECT_API_URL", "RAY_ADDRESS"):
            self.env.pop(name, None)

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "deployments.cli", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=self.root, env=self.env, text=True, start_new_session=True, **pipes)

    def embodyflow(self, *words: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=280)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def prefect(self, *words: str) -> str:
        command = [sys.executable, "-m", "prefect", *words]
        return subprocess.run(command, cwd=self.root, env=self.env, text=True, capture_output=True, check=True).stdout

    def state(self) -> dict[str, object]:
        state: dict[str, object] = json.loads((self.root / ".embodyflow" / "stack.json").read_text())
        return state

    def is_ready(self) -> bool:
        return (self.root / ".embodyflow" / "stack.json").exists() and bool(self.state()["ready"])

    def launcher(self) -> psutil.Process:
        return psutil.Process(int(str(self.state()["pid"])))

    def leftovers(self) -> list[str]:
        """Everything that a stopped stack must not leave: processes that know the project, files that say it is up."""
        mark = f"={self.root}".encode()
        found = []
        for process in psutil.process_iter():
            try:
                environment = Path(f"/proc/{process.pid}/environ").read_bytes()
                zombie = process.status() == psutil.STATUS_ZOMBIE
            except (OSError, psutil.NoSuchProcess):
                continue
            if not zombie and process.pid != os.getpid() and mark in environment:
                found.append(f"{process.pid} {process.name()}")
        files = [self.root / "prefect.toml", self.root / ".embodyflow" / "stack.json"]
        return found + [str(path) for path in files if path.exists()]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path / "project")
    yield project
    project.embodyflow("down")


def eventually(condition: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return bool(met)


def take(port: int, held: ExitStack) -> None:
    """Have somebody listen at the port, if nobody does already."""
    with suppress(OSError):
        held.enter_context(socket.create_server(("127.0.0.1", port)))


def all_gone(processes: list[psutil.Process]) -> bool:
    alive = [each for each in processes if each.is_running()]
    return all(each.status() == psutil.STATUS_ZOMBIE for each in alive)


def test_a_run_by_itself_shows_its_result_and_leaves_nothing(project: Project) -> None:
    """Its process is killed once, and it goes on."""
    done = project.embodyflow("run", "--seed", "3", "iterations=3", "run_id=mine")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "success_rate before=0.625 after=1.000 goals=64 seed=3 seconds=83",
        "run_dir=runs/mine",
    ]
    assert "iteration 2  success 0.5" in done.stderr
    assert re.search(r"Prefect UI: http://127\.0\.0\.1:\d+", done.stderr)
    assert project.leftovers() == []


def test_ctrl_c_ends_a_run_and_everything_with_it(project: Project) -> None:
    process = project.start("run", "iterations=10000", "run_id=long")
    assert eventually((project.root / "runs" / "long" / "metrics.jsonl").exists, 200.0)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    assert len(family) > 5
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert time.monotonic() - began < 20.0
    assert process.returncode == 128 + signal.SIGINT
    assert all_gone(family)
    assert project.leftovers() == []


def test_a_stack_with_the_usual_ports_taken(project: Project) -> None:
    """Found by Prefect's command, used by runs, refused a second time, stopped by ``down``."""
    with ExitStack() as held:
        take(4200, held)
        take(6379, held)
        up = project.embodyflow("up", "--detach")
    assert up.returncode == 0, up.stderr
    assert ":4200" not in str(project.state()["api_url"])
    assert ":6379" not in str(project.state()["ray_address"])
    family = project.launcher().children(recursive=True)

    deployments = json.loads(project.prefect("deployment", "ls", "--output", "json"))
    assert sorted(each["name"] for each in deployments) == NAMES
    assert project.embodyflow("status").returncode == 0
    second = project.embodyflow("up")
    assert second.returncode == 2
    assert "embodyflow down" in second.stderr

    failed = project.embodyflow("run", "run_id=failing", "iterations=1", "trainer.epochs=2")
    assert failed.returncode == 1
    assert "ValueError: no trainer.epochs=2 here" in failed.stderr
    assert (project.root / "runs" / "failing" / "ray").read_text() == project.state()["ray_address"]
    assert not all_gone(family)  # the stack is not the run's: it stays

    assert project.embodyflow("down").returncode == 0
    assert all_gone(family)
    assert project.leftovers() == []


def test_a_killed_stack_dies_whole_and_the_next_ends_its_runs_or_resumes_them(project: Project) -> None:
    assert project.embodyflow("up", "--detach").returncode == 0
    for name in ("embodied", "embodied-nightly"):
        parameters = json.dumps({"run_id": name, "iterations": 10000})
        project.prefect("deployment", "run", f"grpo/{name}", "--params", parameters)
    for name in ("embodied", "embodied-nightly"):
        assert eventually((project.root / "runs" / name / "metrics.jsonl").exists, 60.0)
    family = [project.launcher(), *project.launcher().children(recursive=True)]

    project.launcher().kill()

    assert eventually(lambda: all_gone(family), 30.0)
    assert project.embodyflow("status").returncode == 1
    assert project.embodyflow("up", "--detach").returncode == 0
    url = str(project.state()["api_url"])
    assert eventually(lambda: state_types(url) == {"CRASHED", "COMPLETED"}, 60.0)
    # Its place in the deployment's concurrency limit of 1 is free again.
    limits = post(f"{url}/v2/concurrency_limits/filter", {})
    assert [limit["active_slots"] for limit in limits] == [0]


def test_what_the_user_runs_is_used_and_left_alone(project: Project, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ray, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        home = {"PREFECT_HOME": str(tmp_path / "theirs"), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
        command = [sys.executable, "-m", "prefect", "server", "start", "--host=127.0.0.1", f"--port={port}"]
        log = (tmp_path / "server.log").open("w")
        server = subprocess.Popen(command, env={**project.env, **home}, stdout=log, stderr=log, cwd=tmp_path)
        try:
            url = f"http://127.0.0.1:{port}/api"
            project.env |= {"PREFECT_API_URL": url, "RAY_ADDRESS": f"127.0.0.1:{ray.getsockname()[1]}"}
            assert eventually(lambda: is_healthy(url), 120.0)
            up = project.embodyflow("up", "--detach")
            assert up.returncode == 0, up.stderr
            state = project.state()
            assert (state["api_url"], state["ray_address"]) == (url, project.env["RAY_ADDRESS"])
            assert list(dict(state["processes"])) == ["prefect-worker"]  # type: ignore[call-overload]
            assert not (project.root / "prefect.toml").exists()

            assert project.embodyflow("down").returncode == 0
            assert is_healthy(url)
            assert sorted(each["name"] for each in post(f"{url}/deployments/filter", {})) == NAMES
        finally:
            server.terminate()
            server.wait(timeout=30)
    assert project.leftovers() == []


@pytest.mark.parametrize("name", ["PREFECT_API_URL", "RAY_ADDRESS"])
def test_an_address_where_nothing_answers_is_refused_before_anything_starts(project: Project, name: str) -> None:
    project.env[name] = {"PREFECT_API_URL": "http://127.0.0.1:9/api", "RAY_ADDRESS": "127.0.0.1:9"}[name]
    up = project.embodyflow("up")
    assert up.returncode == 2
    (line,) = up.stderr.splitlines()
    assert line.startswith(f"{name}=")
    assert project.leftovers() == []


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def post(url: str, body: dict[str, object]) -> list[dict[str, object]]:
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        content: list[dict[str, object]] = json.loads(answer.read())
    return content


def state_types(url: str) -> set[object]:
    """The states of the flow runs that were ever started."""
    runs = post(f"{url}/flow_runs/filter", {})
    return {run["state_type"] for run in runs if run["start_time"] is not None}

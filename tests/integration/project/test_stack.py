"""The local stack with real Ray and Prefect: it starts, is found, runs a flow, and leaves nothing behind."""

import json
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.error import HTTPError

import psutil
import pytest
from local_stack import NAMES, Project, all_gone, post
from odd_machine import give_away, odd_environment, odd_prefix, why_not_odd
from small_runs import ROOT, SMALL_CONTROL
from waiting import eventually

from embodyflow.stack.processes import descendants

pytestmark = pytest.mark.integration


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path / "project")
    yield project
    project.embodyflow("down")


def take(port: int, held: ExitStack) -> None:
    """Have somebody listen at the port, if nobody does already."""
    with suppress(OSError):
        held.enter_context(socket.create_server(("127.0.0.1", port)))


@pytest.fixture
def odd_project() -> Iterator[Project]:
    """A project on a machine where little is as expected."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="odd-") as folder:
        Path(folder).chmod(0o755)  # the other user cannot enter the folders of pytest
        project = Project(Path(folder) / "project")
        project.env |= odd_environment(Path(folder))
        project.env.pop("PREFECT_HOME")
        project.prefix = odd_prefix()
        give_away(project.root)
        yield project
        project.embodyflow("down")


@pytest.mark.skipif(bool(why_not_odd()), reason=why_not_odd())
def test_the_odd_machine_is_odd(odd_project: Project) -> None:
    """Otherwise the next test shows less than it says."""
    code = "import os, resource, socket; print(os.getuid(), resource.getrlimit(resource.RLIMIT_NOFILE)[1], "
    code += "[name for _, name in socket.if_nameindex() if name != 'lo'])"
    command = [*odd_project.prefix, sys.executable, "-c", code]
    done = subprocess.run(command, env=odd_project.env, capture_output=True, text=True)
    assert done.stdout == "54321 256 []\n", done.stderr


@pytest.mark.slow
def test_a_run_on_an_odd_machine(odd_project: Project) -> None:
    """Its user is the machine's second, without a home or a network, with few files and a long TMPDIR."""
    done = odd_project.embodyflow("run", "iterations=2", "run_id=odd")
    assert done.returncode == 0, done.stderr
    assert odd_project.leftovers() == []
    assert not list(Path(odd_project.env["TMPDIR"]).glob("embodyflow-*/lock"))


@pytest.mark.core
def test_a_run_by_itself_shows_its_result_and_leaves_nothing(project: Project) -> None:
    """Its process is killed once, and it goes on."""
    done = project.embodyflow("run", "--seed", "3", "iterations=3", "run_id=mine")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "success_rate before=0.625 after=1.000 goals=64 seed=3 seconds=83",
        "run_dir=runs/mine",
    ]
    assert re.search(r"iteration +2/3 +success +0\.5", done.stderr)
    assert re.search(r"Prefect UI: http://127\.0\.0\.1:\d+/sign-in#embodyflow:\w+", done.stderr)
    assert project.leftovers() == []


def test_ctrl_c_ends_a_run_and_everything_with_it(project: Project) -> None:
    process = project.start("run", "iterations=10000", "run_id=long")
    assert eventually((project.root / "runs" / "long" / "metrics.jsonl").exists, 200.0)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    assert len(family) > 5
    second = project.embodyflow("run", "iterations=1", "run_id=second")  # it would be killed with the first one's stack
    assert second.returncode == 2 and "share one stack by `embodyflow up`" in second.stderr
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert time.monotonic() - began < 20.0
    assert process.returncode == 128 + signal.SIGINT
    assert all_gone(family)
    assert project.leftovers() == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_ctrl_c_leaves_nothing_whenever_it_comes(project: Project, seed: int) -> None:
    """While Python imports, the stack's parts start one after the other, or the run is under way."""
    process = project.start("run", "iterations=10000", "run_id=long")
    family = psutil.Process(process.pid)
    time.sleep(random.Random(seed).uniform(0.2, 25.0))
    started = [family, *family.children(recursive=True)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert eventually(lambda: all_gone(started), 5.0)
    assert eventually(lambda: not project.leftovers(), 5.0), project.leftovers()


def listening(processes: list[psutil.Process]) -> dict[int, set[str]]:
    """Return the addresses that processes listen on, by process id; as ``ss -ltnp`` does, without needing it."""
    pids = {process.pid for process in processes}
    found: dict[int, set[str]] = {}
    for each in psutil.net_connections("tcp"):
        if each.status == psutil.CONN_LISTEN and each.pid in pids:
            found.setdefault(each.pid, set()).add(each.laddr.ip.removeprefix("::ffff:"))
    return found


def train_and_listen(project: Project) -> set[str]:
    """Train on the stack, with two trainer ranks that meet at torch's store.

    Returns:
        The addresses that the stack and all processes of the run listened on while the run was up.
    """
    folder, state = project.root / "runs" / "listens", project.state()
    words = (
        "run_id=listens",
        f"run_root={folder.parent}",
        "iterations=1",
        "trainer.num_ranks=2",
        "rollout.num_steps=60",
    )
    secrets = {"PREFECT_API_AUTH_STRING": project.auth_string(), "RAY_AUTH_MODE": "token"}
    secrets["RAY_AUTH_TOKEN_PATH"] = str(project.root / ".embodyflow" / "ray_token")
    secrets["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray stays on the loopback interface
    addresses = {"PREFECT_API_URL": str(state["api_url"]), "RAY_ADDRESS": str(state["ray_address"])}
    command = [sys.executable, "-m", "flows.ppo", *SMALL_CONTROL, *words]
    out = (project.root / "listens.log").open("w+")
    run = psutil.Popen(command, cwd=ROOT, env=project.env | secrets | addresses, stdout=out, stderr=out)
    seen: dict[int, set[str]] = {}
    while run.poll() is None:
        roots = [project.launcher(), run]
        for pid, found in listening([*roots, *(child for each in roots for child in descendants(each))]).items():
            seen.setdefault(pid, set()).update(found)
        time.sleep(0.3)
    assert run.returncode == 0, (project.root / "listens.log").read_text()
    pids = json.loads((folder / "processes.json").read_text())
    assert seen.keys() >= {pid for name, pid in pids.items() if name.startswith(("rollout/", "trainer/"))}
    return {address for found in seen.values() for address in found}


@pytest.mark.slow
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
    assert {address for found in listening(family).values() for address in found} == {"127.0.0.1"}
    assert Path(str(project.state()["ray_temp_dir"])).stat().st_mode & 0o777 == 0o700

    deployments = json.loads(project.prefect("deployment", "ls", "--output", "json"))
    assert sorted(each["name"] for each in deployments) == NAMES
    status = project.embodyflow("status")
    assert status.returncode == 0
    password = project.auth_string()
    assert up.stdout.count(f"/sign-in#{password}\n") == status.stdout.count(f"/sign-in#{password}\n") == 1
    with pytest.raises(HTTPError, match="401"):
        command = {"job_variables": {"command": "touch owned"}}
        post(f"{project.state()['api_url']}/deployments/{deployments[0]['id']}/create_flow_run", command)
    private = [project.root / "prefect.toml", *(project.root / ".embodyflow").rglob("*")]
    readable = [path for path in private if path.is_file() and path.stat().st_mode & 0o077]
    assert not [path for path in readable if password.encode() in path.read_bytes()]
    assert not [each for each in psutil.process_iter(["cmdline"]) if password in str(each.info["cmdline"])]
    second = project.embodyflow("up")
    assert second.returncode == 2
    assert "embodyflow down" in second.stderr

    failed = project.embodyflow("run", "run_id=failing", "iterations=1", "trainer.epochs=2")
    assert failed.returncode == 1
    assert "ValueError: no trainer.epochs=2 here" in failed.stderr
    assert (project.root / "runs" / "failing" / "ray").read_text() == project.state()["ray_address"]
    assert not all_gone(family)  # the stack is not the run's: it stays

    run = project.flow_run("FAILED", "failing")
    assert run is not None
    project.prefect("flow-run", "retry", str(run["id"]))
    assert eventually(lambda: project.flow_run("COMPLETED", "failing"), 60.0)

    assert project.embodyflow("down").returncode == 0
    assert all_gone(family)
    assert project.leftovers() == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_listens_beyond_loopback_while_a_stack_and_a_run_are_up(project: Project) -> None:
    up = project.embodyflow("up", "--detach")
    assert up.returncode == 0, up.stderr
    assert train_and_listen(project) == {"127.0.0.1"}


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
    assert eventually(lambda: state_types(project) == {"CRASHED", "COMPLETED"}, 60.0)
    # Its place in the deployment's concurrency limit of 1 is free again.
    limits = project.api("/v2/concurrency_limits/filter", {})
    assert [limit["active_slots"] for limit in limits] == [0]


@pytest.mark.slow
def test_what_the_user_runs_is_used_and_left_alone(project: Project, tmp_path: Path) -> None:
    """But for a run that a killed stack has left on their server."""
    with socket.create_server(("127.0.0.1", 0)) as ray, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        home = {"PREFECT_HOME": str(tmp_path / "theirs"), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
        home["PREFECT_SERVER_API_AUTH_STRING"] = "me:password"
        command = [sys.executable, "-m", "prefect", "server", "start", "--host=127.0.0.1", f"--port={port}"]
        log = (tmp_path / "server.log").open("w")
        server = subprocess.Popen(command, env={**project.env, **home}, stdout=log, stderr=log, cwd=tmp_path)
        try:
            url = f"http://127.0.0.1:{port}/api"
            project.env |= {"PREFECT_API_URL": url, "RAY_ADDRESS": f"127.0.0.1:{ray.getsockname()[1]}"}
            assert eventually(lambda: is_healthy(url), 120.0)
            refused = project.embodyflow("up", "--detach")
            assert refused.returncode == 2 and project.leftovers() == []
            assert refused.stderr.startswith(f"PREFECT_API_AUTH_STRING: is not set, and {url} wants credentials")
            profile = 'active = "theirs"\n[profiles.theirs]\nPREFECT_API_AUTH_STRING = "me:password"\n'
            (project.root / "home" / "profiles.toml").write_text(profile)
            up = project.embodyflow("up", "--detach")
            assert up.returncode == 0, up.stderr
            state = project.state()
            assert not (project.root / ".embodyflow" / "prefect_auth").exists()
            assert (state["api_url"], state["ray_address"]) == (url, project.env["RAY_ADDRESS"])
            assert list(dict(state["processes"])) == ["prefect-worker"]  # type: ignore[call-overload]
            assert not (project.root / "prefect.toml").exists()

            parameters = json.dumps({"run_id": "left", "iterations": 10000})
            project.prefect("deployment", "run", "grpo/embodied", "--params", parameters)
            assert eventually((project.root / "runs" / "left" / "metrics.jsonl").exists, 60.0)
            [flow] = post(f"{url}/flows/filter", {"flows": {"name": {"any_": ["grpo"]}}}, "me:password")
            theirs = {"name": "theirs", "flow_id": flow["id"], "state": {"type": "RUNNING", "name": "Running"}}
            post(f"{url}/flow_runs/", theirs, "me:password")
            family = [project.launcher(), *project.launcher().children(recursive=True)]
            project.launcher().kill()
            assert eventually(lambda: project.flow_run("CRASHED", "left"), 15.0)
            assert eventually(lambda: all_gone(family), 30.0)
            assert project.embodyflow("up", "--detach").returncode == 0
            assert project.flow_run("RUNNING", "theirs")

            assert project.embodyflow("down").returncode == 0
            assert is_healthy(url)
            assert sorted(each["name"] for each in post(f"{url}/deployments/filter", {}, "me:password")) == NAMES
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


def state_types(project: Project) -> set[object]:
    """The states of the flow runs that were ever started."""
    runs = project.api("/flow_runs/filter", {})
    return {run["state_type"] for run in runs if run["start_time"] is not None}

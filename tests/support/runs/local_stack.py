"""A project folder with its own local stack, for tests."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import Path
from typing import Any

import psutil
import yaml
from waiting import RUN_SECONDS

from embodyflow.orchestration.server.credentials import Credentials

ROOT = Path(__file__).resolve().parents[3]

DEPLOYMENTS = yaml.safe_load((ROOT / "deployments" / "prefect.yaml").read_text())["deployments"]
NAMES = sorted(each["name"] for each in DEPLOYMENTS)

# Stands in for the real flows, with the same parameters and the same files in the run's folder, but without learning. A
# run of three iterations is killed once, in its second. A run with overrides fails once. A resumed run has two more
# iterations.
FLOW = """
import asyncio, json, os
from pathlib import Path
from prefect import flow
from embodyflow.orchestration.watchers.flow_run_watch import watch_flow_run
from embodyflow.orchestration.server.resumption import resume_after_crash

@flow(name="grpo", flow_run_name="{run_id}", on_crashed=[resume_after_crash])
async def grpo(experiment: str = "embodied", algorithm: str | None = None, iterations: int | None = None,
               seed: int | None = None, run_id: str | None = None, resume: str | None = None,
               overrides: list[str] = []):
    watch_flow_run()
    folder = Path("runs") / run_id
    resumed = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ray").write_text(os.environ["RAY_ADDRESS"])
    if overrides and not resumed:
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
    """A folder with the real deployments and the ``embodyflow`` command.

    Args:
        root: Folder to create.
        trains: True for the real flows; otherwise all are copies of ``FLOW``.
    """

    def __init__(self, root: Path, *, trains: bool = False) -> None:
        self.root = root
        (root / "deployments").mkdir(parents=True)
        (root / "flows").mkdir()
        shutil.copy(ROOT / "deployments" / "prefect.yaml", root / "deployments")
        for name in {each["entrypoint"].partition(":")[2] for each in DEPLOYMENTS}:
            if trains:
                shutil.copy(ROOT / "flows" / f"{name}.py", root / "flows")
            else:
                (root / "flows" / f"{name}.py").write_text(FLOW.replace("grpo", name))
        self.env = {**os.environ, "PYTHONPATH": str(ROOT), "PREFECT_HOME": str(root / "home")}
        (root / "home").mkdir()
        for name in ("PREFECT_API_URL", "RAY_ADDRESS"):
            self.env.pop(name, None)
        self.prefix: list[str] = []  # beginning of each `embodyflow` command

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [*self.prefix, sys.executable, "-m", "embodyflow.cli.main", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=self.root, env=self.env, text=True, start_new_session=True, **pipes)

    def embodyflow(self, *words: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=RUN_SECONDS)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def prefect(self, *words: str) -> str:
        command = [sys.executable, "-m", "prefect", *words]
        done = subprocess.run(command, cwd=self.root, env=self.env, text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def state(self) -> dict[str, object]:
        state: dict[str, object] = json.loads((self.root / ".embodyflow" / "stack.json").read_text())
        return state

    def is_ready(self) -> bool:
        return (self.root / ".embodyflow" / "stack.json").exists() and bool(self.state()["ready"])

    def launcher(self) -> psutil.Process:
        return psutil.Process(int(str(self.state()["pid"])))

    def leftovers(self) -> list[str]:
        """Return processes and files of the project that must not exist after its stack has stopped."""
        files = [self.root / "prefect.toml", self.root / ".embodyflow" / "stack.json"]
        return self.processes() + [str(path) for path in files if path.exists()]

    def processes(self) -> list[str]:
        """Return the live processes of the project, without this one."""
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
        return found

    def log(self) -> str:
        """Return the output of the Prefect worker and its flows since the stack started."""
        return (self.root / ".embodyflow" / "logs" / "prefect-worker.log").read_text()

    def auth_string(self) -> str:
        """Return the password of the stack's own Prefect server, or that of the user's server in the tests."""
        if self.state()["owns_server"]:
            return (self.root / ".embodyflow" / "prefect_auth").read_text()
        return "me:password"

    def api(self, path: str, body: dict[str, object]) -> Any:
        """POST to the Prefect server; return its answer."""
        return post(f"{self.state()['api_url']}{path}", body, self.auth_string())

    def flow_run(self, state: str, name: str) -> dict[str, Any] | None:
        """Return the flow run with this name and state, or ``None``."""
        wanted = {"state": {"type": {"any_": [state]}}, "name": {"any_": [name]}}
        runs: list[dict[str, Any]] = self.api("/flow_runs/filter", {"flow_runs": wanted})
        return runs[0] if runs else None


def all_gone(processes: list[psutil.Process]) -> bool:
    """Return True if all processes have ended. A zombie has ended."""
    return not any(_is_alive(each) for each in processes)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two calls
        return False


def post(
    url: str, body: dict[str, object], auth_string: str | None = None, attempts: int = 6
) -> list[dict[str, object]]:
    """POST to a Prefect server; return its answer.

    As Prefect's client does, ask again if there is none, or if the server is busy: with SQLite it refuses a write while
    another one takes long.
    """
    headers = {"Content-Type": "application/json", **Credentials(auth_string).headers()}
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            content: list[dict[str, object]] = json.loads(answer.read())
    except (TimeoutError, urllib.error.HTTPError) as error:
        is_busy = isinstance(error, TimeoutError) or error.code == HTTPStatus.SERVICE_UNAVAILABLE
        if not is_busy or attempts == 1:
            raise
        time.sleep(2.0)
        return post(url, body, auth_string, attempts - 1)
    return content

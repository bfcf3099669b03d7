"""A flow run is over when its watch says so, or when the server has reported that for a while."""

import io
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from rich.console import Console
from waiting import eventually

from embodyflow.cli import run as module
from embodyflow.cli.run import FlowRun
from embodyflow.errors import ConfigError
from embodyflow.process.files.private_files import write_private
from embodyflow.stack.stack_folder import StackFolder, StackState

RUN_ID = "3fbcd7e8-d274-45f4-bd12-e79f2f76c772"
STATE = StackState(1, 0.0, True, "http://unused/api", "127.0.0.1:6379", None, {}, owns_server=False)
SUBMITTED = f"print('UUID: {RUN_ID}', flush=True)"


class Api:
    """A server with one flow run."""

    kind = "RUNNING"
    message = ""
    logged: str | None = None

    def flow_run(self, flow_run_id: str) -> dict[str, object] | None:
        assert flow_run_id == RUN_ID
        if self.kind == "DELETED":
            return None
        return {"state_type": self.kind, "state": {"type": self.kind, "message": self.message}}

    def last_error(self, flow_run_id: str) -> str | None:
        return self.logged

    def is_healthy(self) -> bool:
        return False


class Watched:
    """Creates flow runs whose watch is a Python program."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = StackFolder(tmp_path)
        self.patch = monkeypatch
        self.runs: list[FlowRun] = []

    def start(self, watch: str, kind: str = "RUNNING", message: str = "", logged: str | None = None) -> FlowRun:
        self.patch.setattr(Api, "kind", kind)
        self.patch.setattr(Api, "message", message)
        self.patch.setattr(Api, "logged", logged)
        self.patch.setattr(module, "run_command", lambda deployment, parameters: [sys.executable, "-c", watch])
        self.runs.append(FlowRun(self.folder, STATE, "grpo/embodied", {"run_id": "mine"}))
        return self.runs[-1]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(module, "stack_api", lambda folder, state: Api())
    monkeypatch.setattr(module, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(module, "RESUME_SECONDS", 0.1)
    made = Watched(tmp_path, monkeypatch)
    yield made
    for each in made.runs:
        each.cancel()


def outcome(run: FlowRun, seconds: float) -> int | None:
    deadline = time.monotonic() + seconds
    while (code := run.poll()) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return code


@pytest.mark.parametrize(("code", "kind"), [(0, "RUNNING"), (1, "FAILED")])
def test_the_watch_gives_the_exit_code(watched: Watched, code: int, kind: str) -> None:
    assert outcome(watched.start(f"{SUBMITTED}; raise SystemExit({code})", kind), 10.0) == code


def test_a_crashed_run_is_given_time_to_be_resumed(watched: Watched) -> None:
    watched.patch.setattr(module, "RESUME_SECONDS", 60.0)
    run = watched.start(f"{SUBMITTED}; raise SystemExit(1)", "CRASHED")
    assert outcome(run, 2.0) is None
    watched.patch.setattr(Api, "kind", "RUNNING")
    assert outcome(run, 0.5) is None
    watched.patch.setattr(Api, "kind", "COMPLETED")
    assert outcome(run, 10.0) == 0


@pytest.mark.parametrize(("kind", "code"), [("COMPLETED", 0), ("FAILED", 1), ("CRASHED", 1), ("CANCELLED", 1)])
def test_a_watch_that_missed_the_end_is_ended(watched: Watched, kind: str, code: int) -> None:
    assert outcome(watched.start(f"{SUBMITTED}; import time; time.sleep(60)", kind), 10.0) == code


def test_a_deleted_run_is_over(watched: Watched) -> None:
    run = watched.start(f"{SUBMITTED}; import time; time.sleep(60)", "DELETED")
    assert outcome(run, 10.0) == 1
    assert run.failure() == "the flow run was deleted; resume=mine continues after the last commit"


def test_a_run_is_active_while_neither_reports_its_end(watched: Watched) -> None:
    assert outcome(watched.start(f"{SUBMITTED}; import time; time.sleep(60)"), 1.0) is None


def test_a_refused_submission_shows_the_commands_output(watched: Watched) -> None:
    run = watched.start("print('iterations: not an integer'); raise SystemExit(1)")
    assert outcome(run, 10.0) == 1
    assert run.failure() == "iterations: not an integer"


def test_a_resumed_run_is_not_confused_with_its_previous_flow_run(watched: Watched) -> None:
    before = "3fbcd7e8-d274-45f4-bd12-000000000000"
    first = watched.start(f"print('UUID: {before}')")
    assert eventually(lambda: first._watch.poll() is not None)
    assert (first.id, first.poll()) == (before, 0)
    resumed = watched.start(f"{SUBMITTED}; import time; time.sleep(60)")
    assert eventually(lambda: resumed.id is not None, 10.0)
    assert resumed.id == RUN_ID
    assert outcome(resumed, 0.5) is None


def test_an_exception_is_read_from_the_state_and_a_crash_from_the_log(watched: Watched) -> None:
    ends = f"{SUBMITTED}; raise SystemExit(1)"
    failed = watched.start(ends, "FAILED", "ConfigError: seed: must be ≥ 0", logged="Traceback …")
    assert outcome(failed, 10.0) == 1
    assert failed.failure() == "ConfigError: seed: must be ≥ 0"
    crashed = watched.start(ends, "CRASHED", "exit status -9", logged="out of memory")
    assert outcome(crashed, 10.0) == 1
    assert crashed.failure() == "out of memory"


def test_a_stack_is_shared_unless_it_belongs_to_another_run(tmp_path: Path) -> None:
    folder, console, me = StackFolder(tmp_path), Console(file=io.StringIO()), psutil.Process()
    shared = StackState(me.pid, me.create_time(), True, "http://127.0.0.1:4200/api", "127.0.0.1:6379", None, {}, "up")
    folder.write_state(shared)
    write_private(folder.prefect_auth, "me:password")
    with module._stack(folder, console) as (state, _):
        assert state == shared
    folder.write_state(replace(shared, command="run"))
    with pytest.raises(ConfigError) as refusal, module._stack(folder, console):
        pass
    (line,) = str(refusal.value).splitlines()
    assert f"process {me.pid}" in line and "`embodyflow up`" in line

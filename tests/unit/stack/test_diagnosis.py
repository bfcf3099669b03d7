"""Why a stack is down: who died, how its log ends, and what to do."""

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from embodyflow.cli import up
from embodyflow.errors import ConfigError
from embodyflow.stack import diagnosis
from embodyflow.stack import stack as stack_module
from embodyflow.stack.diagnosis import StackEnd, StackError, describe_exit, diagnose, write_end
from embodyflow.stack.prefect_api import PrefectApi
from embodyflow.stack.stack import Stack
from embodyflow.stack.stack_folder import StackFolder, StackState

ME = psutil.Process()
STATE = StackState(ME.pid, ME.create_time(), True, "http://127.0.0.1:9/api", "127.0.0.1:9", None, {"prefect-server": 1})
DENIED = "PermissionError: [Errno 13] Permission denied: '/tmp/runner_storage/x'"


@pytest.fixture
def folder(folder: StackFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StackFolder:
    monkeypatch.setattr(stack_module, "start_watcher", lambda *_: None)
    (tmp_path / "deployments").mkdir()
    folder.prefect_yaml.write_text("deployments: []")
    folder.log("any").parent.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize(
    ("code", "text", "line"),
    [
        (1, f"Traceback\n{DENIED}\n\n", f"ray ended with exit code 1 ({DENIED})"),
        (0, "bye\n", "ray ended with exit code 0"),
        (-9, "", "ray was killed by SIGKILL"),
    ],
)
def test_an_exit_is_one_line(folder: StackFolder, code: int, text: str, line: str) -> None:
    folder.log("ray").write_text(text)
    assert describe_exit("ray", code, folder.log("ray")) == line


@pytest.mark.parametrize(
    ("reason", "log", "remedy"),
    [
        ("prefect-worker ended with exit code 1", DENIED, "give this user the right to write"),
        ("ray ended with exit code 1", "OSError: [Errno 24] Too many open files", "`ulimit -n 4096`"),
        ("prefect-server ended with exit code 3", "OSError: [Errno 28] No space left on device", "make room"),
        ("ray was killed by SIGKILL", "", "free memory"),
        ("ray ended with exit code 1", "Exception: The current node timed out during startup.", "less busy"),
        ("ray ended with exit code 1", "something new", "`embodyflow up` starts a new stack"),
    ],
)
def test_the_status_of_a_stack_that_died_says_who_and_what_to_do(
    folder: StackFolder, capsys: pytest.CaptureFixture[str], reason: str, log: str, remedy: str
) -> None:
    path = folder.log("any")
    path.write_text("\n".join(f"line {n}" for n in range(100)) + "\n" + log)
    write_end(folder, StackEnd.from_error(StackError(reason, path)))
    assert up.status() == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"down: {reason}"
    assert re.match(r"when +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", lines[1])
    assert lines[2].endswith(str(path)) and 5 <= len(lines) <= 9
    assert any(line.endswith(f"| {log}") for line in lines) or not log
    assert lines[-1].startswith("to do") and remedy in lines[-1]


def test_the_status_of_a_stack_that_was_stopped_or_killed(
    folder: StackFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert up.status() == 1
    assert capsys.readouterr().out.startswith("down: no stack was started here, or it was stopped; `embodyflow up`")
    folder.write_state(replace(STATE, created=1.0))
    assert up.status() == 1
    assert capsys.readouterr().out.startswith(f"down: its launcher (process {ME.pid}) was killed, or the machine was")


def test_the_status_names_the_service_that_does_not_answer(
    folder: StackFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write_state(replace(STATE, ready=False))
    assert diagnose(folder)[0].startswith(f"starting: process {ME.pid} has not finished yet")
    folder.write_state(STATE)
    folder.log("prefect-server").write_text("database is locked\n")
    folder.prefect_auth.write_text("user:password")
    lines = diagnose(folder)
    assert lines[0] == "not ready: prefect-server does not answer at http://127.0.0.1:9/api"
    assert lines[2].endswith("| database is locked") and lines[-1].startswith("to do")
    monkeypatch.setattr(PrefectApi, "is_healthy", lambda _: True)
    assert diagnose(folder)[0] == "not ready: ray does not answer at 127.0.0.1:9"
    monkeypatch.setattr(diagnosis, "answers", lambda _: True)
    beats: list[str | None] = [None, "2020-01-01T00:00:00Z"]
    monkeypatch.setattr(PrefectApi, "heartbeat", lambda *_: beats.pop(0))
    assert diagnose(folder)[0] == "not ready: prefect-worker has sent no heartbeat"
    assert re.match(r"not ready: prefect-worker has sent no heartbeat for \d+ s", diagnose(folder)[0])


class Api(PrefectApi):
    """A server that has the heartbeats that a test says."""

    beats: ClassVar[list[str | None]]

    def is_healthy(self) -> bool:
        return True

    def heartbeat(self, pool: str, worker: str) -> str | None:
        return self.beats.pop(0) if len(self.beats) > 1 else self.beats[0]

    def request(self, *_: object) -> list[object]:
        return []


@pytest.fixture
def stack(folder: StackFolder, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """A stack with a server and Ray of the user's, whose worker is a script of the test's."""
    monkeypatch.setattr(stack_module, "stack_api", lambda folder, state: Api(state.api_url))
    monkeypatch.setattr(stack_module, "answers", lambda _: True)
    monkeypatch.setattr(stack_module, "START_TIMEOUT", 20.0)
    monkeypatch.setattr(stack_module, "deploy_command", lambda _: [sys.executable, "-c", ""])
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    return Stack(folder, "up")


def worker(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(stack_module, "worker_command", lambda _: [sys.executable, "-c", code])


def test_a_stack_whose_worker_dies_after_its_first_heartbeat_is_not_ready(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Prefect's does where another user owns its folder."""
    worker(monkeypatch, "import time; time.sleep(0.5); open('/nonexistent/storage')")
    Api.beats = [None, "2026-01-01T00:00:00Z"]
    with (
        pytest.raises(StackError, match=r"prefect-worker ended with exit code 1 \(FileNotFoundError: .*storage'\)"),
        stack,
    ):
        pytest.fail("it is ready")
    assert diagnose(stack.folder)[0].startswith("down: prefect-worker ended with exit code 1 (FileNotFoundError")


def test_a_heartbeat_of_an_earlier_worker_does_not_count(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    worker(monkeypatch, "print('Worker started!', flush=True); import time; time.sleep(60)")
    monkeypatch.setattr(stack_module, "START_TIMEOUT", 2.0)
    Api.beats = ["2026-01-01T00:00:00Z"]
    with pytest.raises(StackError, match="prefect-worker did not answer within 2 s"), stack:
        pytest.fail("it is ready")


def test_the_worker_keeps_its_files_in_a_folder_of_its_own_that_goes_with_the_stack(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker(monkeypatch, "import tempfile, time; print(tempfile.gettempdir(), 'started!', flush=True); time.sleep(60)")
    Api.beats = [None, "2026-01-01T00:00:00Z"]
    with stack:
        place = Path(stack.folder.log("prefect-worker").read_text().split()[0])
        assert place.name.startswith("embodyflow-") and place.stat().st_mode & 0o777 == 0o700
        assert stack.state.ready
    assert not place.exists()
    assert diagnose(stack.folder)[0].startswith("down: no stack was started here, or it was stopped")


@pytest.mark.parametrize("num_slow", [2, 3])
def test_ray_that_is_too_slow_to_start_starts_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, num_slow: int
) -> None:
    """Its limit of 30 s cannot be set, and busy machines exceed it."""
    code = f"""
import sys, time
with open({str(tmp_path / "starts")!r}, "a+") as file:
    file.write("x")
    file.seek(0)
    if len(file.read()) <= {num_slow}:
        sys.exit("Exception: The current node timed out during startup. This could happen because")
print("Ray runtime started.", flush=True)
time.sleep(60)
"""
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setattr(stack_module, "ray_command", lambda *_: [sys.executable, "-c", code])
    worker(monkeypatch, "import time; print('started!', flush=True); time.sleep(60)")
    Api.beats = [None, "2026-01-01T00:00:00Z"]
    stack = Stack(stack.folder, "up")  # with Ray of its own
    monkeypatch.setattr(Stack, "_check_attached", lambda _: None)
    if num_slow < 3:
        with stack:
            assert (tmp_path / "starts").read_text() == "xxx"
    else:
        with pytest.raises(StackError, match="timed out during startup"), stack:
            while True:
                stack.check()


def test_a_project_of_another_user_is_refused_in_a_line(folder: StackFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # the tests may run as root, who may write everywhere
    for start in (up.detached, folder.locked().__enter__):
        with pytest.raises(ConfigError, match=r"\.embodyflow: Permission denied; allowed is a project that you can"):
            start()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"reason": "x"}'])
def test_a_damaged_record_of_the_end_is_told(content: str, folder: StackFolder) -> None:
    (folder.private / "stack-end.json").write_text(content)
    assert diagnose(folder)[0] == f"down: unknown, because {folder.private}/stack-end.json is damaged"


def test_a_full_disk_hides_no_reason_of_a_stacks_end(
    folder: StackFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def start(_: Stack) -> None:
        raise StackError("why it ends", folder.log("any"))

    monkeypatch.setattr(stack_module, "write_end", full)
    monkeypatch.setattr(Stack, "_start", start)
    with pytest.raises(StackError, match="why it ends"), Stack(folder, "up"):
        pass
    assert "warning: could not record why the stack ended: [Errno 28]" in capsys.readouterr().err

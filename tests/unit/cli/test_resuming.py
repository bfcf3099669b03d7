"""A stopped run is named with the command that resumes it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from embodyflow.cli import run as module
from embodyflow.cli import up
from embodyflow.cli.main import main
from embodyflow.cli.run_folders.resuming import how_to_resume
from embodyflow.project import PREFECT_YAML
from embodyflow.record.run_folder import RunFolder
from embodyflow.stack.processes import STACK_VARIABLE

AT_WORK = """
import sys
from pathlib import Path
from embodyflow.record.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).locked():
    print("locked", flush=True)
    sys.stdin.read()
"""


def run_in(root: Path, name: str, committed: int | None) -> RunFolder:
    folder = RunFolder(root / name)
    folder.path.mkdir(parents=True)
    (folder.path / "config.yaml").write_text("iterations: 9\n")
    for iteration in range(0 if committed is None else committed + 1):
        folder.checkpoints.begin(iteration)
        folder.checkpoints.commit(iteration, {}, keep=2)
    return folder


def test_the_command_names_the_run_and_its_last_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert how_to_resume(run_in(Path("runs"), "mine", 3)) == "embodyflow run resume=mine continues after iteration 3"
    elsewhere = how_to_resume(run_in(tmp_path / "other", "mine", 0))
    assert elsewhere == f"embodyflow run resume=mine run_root={tmp_path}/other continues after iteration 0"
    assert "nothing to resume" in how_to_resume(run_in(Path("runs"), "fresh", None))


def test_down_names_the_runs_of_its_stack_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / PREFECT_YAML).parent.mkdir()
    (tmp_path / PREFECT_YAML).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("embodyflow.stack.signals.exit_on_signals", lambda: None)
    monkeypatch.setattr(up, "stop_stack", lambda folder: True)
    marks = {"submitted": str(tmp_path.resolve()), "by-hand": "", "of-another-stack": "/elsewhere"}
    processes = []
    for name, mark in marks.items():
        folder = run_in(tmp_path / "runs", name, 2)
        command = [sys.executable, "-c", AT_WORK, str(folder.path)]
        env = {**os.environ, STACK_VARIABLE: mark}
        processes.append(subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    run_in(tmp_path / "runs", "stopped-before", 2)
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "locked\n"
        assert main(["down"]) == 0
    finally:
        for process in processes:
            process.communicate("")
    output = capsys.readouterr()
    expected = "stops the run submitted; embodyflow run resume=submitted continues after iteration 2\n"
    assert (output.err, output.out) == (expected, "stopped\n")


def test_a_signal_to_a_run_is_answered_with_the_command_that_resumes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit), module._names_resumption(run_in(Path("runs"), "mine", 5)):
        raise SystemExit(130)
    assert capsys.readouterr().err == "stopped; embodyflow run resume=mine continues after iteration 5\n"
    with module._names_resumption(RunFolder(tmp_path / "none")):
        pass
    assert capsys.readouterr().err == ""

"""``embodyflow ledger`` shows the ledger of a run and verifies its checkpoints."""

import subprocess
import sys
from pathlib import Path

import pytest

from embodyflow.cli.main import main
from embodyflow.record.checkpoints import Checkpoints
from embodyflow.record.ledger import Ledger
from embodyflow.record.run_folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """The folder of a run with three commits."""
    folder, ledger = RunFolder(tmp_path), Ledger(tmp_path / "ledger.jsonl")
    for iteration in range(3):
        (folder.checkpoints.begin(iteration) / "weights").write_text(str(iteration))
        folder.checkpoints.commit(iteration, {}, keep=2)
        ledger.append("commit", iteration, {"weights_digest": f"{iteration:x}" * 64})
    return folder


def test_the_ledger_is_shown_and_damage_is_reported(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", str(run.path)]) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [f"checkpoint of iteration {i}: intact" for i in range(3)]
    (run.checkpoints.folder(1) / "weights").write_text("other")
    assert main(["ledger", str(run.path)]) == 1
    assert capsys.readouterr().err == f"{run.checkpoints.folder(1)}/weights is missing or damaged\n"


def test_a_checkpoint_that_an_active_run_replaces_is_not_damage(
    run: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = Checkpoints.verify

    def verify_while_the_run_goes_on(checkpoints: Checkpoints, iteration: int) -> None:
        if iteration == 1:
            checkpoints.drop(iteration)
        verify(checkpoints, iteration)

    monkeypatch.setattr(Checkpoints, "verify", verify_while_the_run_goes_on)
    assert main(["ledger", str(run.path)]) == 0
    shown = capsys.readouterr()
    assert "iteration 1: intact" not in shown.out and "iteration 2: intact" in shown.out and not shown.err


def test_a_closed_output_is_not_reported_as_a_server_failure(tmp_path: Path) -> None:
    (tmp_path / "deployments").mkdir()
    (tmp_path / "deployments" / "prefect.yaml").touch()
    command = [sys.executable, "-c", "import sys, embodyflow.cli.main; sys.exit(embodyflow.cli.main.main(['down']))"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_a_ledger_without_a_whole_line_is_damage(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    for content in (run.ledger_path.read_bytes()[:40], b""):
        run.ledger_path.write_bytes(content)
        assert main(["ledger", str(run.path)]) == 1
        shown = capsys.readouterr()
        assert shown.err == f"{run.ledger_path}: has no whole line, so it records nothing\n" and not shown.out


def test_a_ledger_that_lost_its_last_lines_is_damage(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line proves those before it, and none those after it; checkpoints tell of the rest."""
    lines = run.ledger_path.read_bytes().splitlines(keepends=True)
    run.ledger_path.write_bytes(b"".join(lines[:-1]))  # as after a kill between a checkpoint and its line
    assert main(["ledger", str(run.path)]) == 0
    run.ledger_path.write_bytes(lines[0])
    capsys.readouterr()
    assert main(["ledger", str(run.path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{run.ledger_path}: has no line for the checkpoint of iteration 1, so lines are missing")


@pytest.mark.parametrize("content", [b"[]", b"{}", b"null", b'{"files": 3}', b"", b"\xff"])
def test_facts_of_another_kind_are_damage(content: bytes, run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    (run.checkpoints.folder(1) / "commit.json").write_bytes(content)
    assert main(["ledger", str(run.path)]) == 1
    assert capsys.readouterr().err == f"{run.checkpoints.folder(1)}/commit.json is missing or damaged\n"
    assert run.checkpoints.weights_digest(1) is None


def test_only_folders_with_the_name_of_an_iteration_are_checkpoints(run: RunFolder) -> None:
    for name in ("iteration-000001.bak", "iteration-x", "iteration-", ".dropped-x"):
        (run.checkpoints.path / name).mkdir()
    (run.checkpoints.path / "iteration-000007").touch()
    assert run.checkpoints.committed() == [0, 1, 2]
    run.checkpoints.begin(3)
    run.checkpoints.commit(3, {}, keep=1)
    assert run.checkpoints.committed() == [0, 3]
    assert (run.checkpoints.path / "iteration-000001.bak").is_dir() and (run.checkpoints.path / ".dropped-x").is_dir()

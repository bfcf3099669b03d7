"""Faults of files, folders and words are one line of each command, and texts of others are shown as they are."""

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.table import Table

from embodyflow.cli.main import main
from embodyflow.cli.plain_text import plain
from embodyflow.cli.run_folders.found_runs import find_run
from embodyflow.cli.run_folders.resuming import how_to_resume
from embodyflow.cli.tables import as_it_is, table_console
from embodyflow.errors import ConfigError, DamageError
from embodyflow.record.run_folder import RunFolder

CONFIG = "experiment: '{experiment}'\nflow: grpo\niterations: 3\njob: embodied\n"
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def quiet_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embodyflow.stack.signals.exit_on_signals", lambda: None)
    monkeypatch.delenv("COLUMNS", raising=False)


def make(path: Path, experiment: str = "embodied") -> Path:
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(CONFIG.format(experiment=experiment))
    return path


def raising(error: Exception) -> Callable[[], int]:
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "runs/a\nb/x"), r"error: runs/a\nb/x: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), "error: standard output or a file: No space left on device"),
        (DamageError("runs/a/played.npz is damaged: no zip"), "error: runs/a/played.npz is damaged: no zip"),
    ],
)
def test_a_fault_of_a_file_is_one_line(
    error: Exception, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("embodyflow.cli.up.status", raising(error))
    assert main(["status"]) == 1
    assert capsys.readouterr().err.splitlines() == [line]


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory", "ours.py")
    monkeypatch.setattr("embodyflow.cli.up.status", raising(missing))
    with pytest.raises(FileNotFoundError):
        main(["status"])


@pytest.mark.parametrize("command", ["ledger", "episodes", "logs", "explain"])
def test_a_name_that_is_too_long_is_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "x" * 300]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: xxx") and line.endswith(": File name too long")


def run_in(folder: Path, *words: str, to: int = subprocess.PIPE) -> "subprocess.CompletedProcess[str]":
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from embodyflow.cli.main import main; sys.exit(main())"
    env = {**os.environ, "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        [sys.executable, "-c", program, *words], cwd=folder, env=env, stdout=to, stderr=subprocess.PIPE, text=True
    )


def test_a_full_disk_below_the_output_is_one_line(tmp_path: Path) -> None:
    make(tmp_path / "runs" / "mine")
    with open("/dev/full", "w") as full:
        done = run_in(tmp_path, "runs", to=full.fileno())
    assert (done.returncode, done.stderr) == (1, "error: standard output or a file: No space left on device\n")


def test_a_name_that_is_no_text_hides_no_run_and_obeys_nobody(tmp_path: Path) -> None:
    make(tmp_path / "runs" / "mine")
    make(tmp_path / "runs" / os.fsdecode(b"odd\xff\x1b[2J"), experiment="[/]:smile:")
    done = run_in(tmp_path, "runs")
    assert done.returncode == 0 and not done.stderr
    assert r"runs/odd\udcff\x1b[2J" in done.stdout and "runs/mine" in done.stdout and "[/]:smile:" in done.stdout


def test_a_current_folder_that_was_removed_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["runs"]) == 2
    assert capsys.readouterr().err == "the current folder was removed; change to one that exists\n"


@pytest.mark.parametrize("word", ["", " ", "a\nb", "a\x1b[31m"])
@pytest.mark.parametrize(
    "words",
    [
        *(["init", "{}"], ["ledger", "{}"], ["episodes", "{}"], ["replay", "{}", "0"], ["port", "{}"]),
        *(["runs", "--run-root", "{}"], ["export-dataset", "runs/x", "--output", "{}"]),
        *(["compare", "a", "b", "--picture", "{}"], ["plan", "--picture", "{}"]),
    ],
    ids=" ".join,
)
def test_a_blank_path_or_one_with_control_characters_is_one_line(
    word: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shell makes an empty word of a variable that is not set; it would mean the current folder."""
    monkeypatch.chdir(tmp_path)
    assert main([each.replace("{}", word) for each in words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"embodyflow {words[0]}: Invalid value for '")
    assert "must be neither blank nor contain control characters" in line and line.isprintable()
    assert not list(tmp_path.iterdir())


def test_control_characters_are_shown_and_lines_stay() -> None:
    assert plain("a\tb\nc") == "a\tb\nc" and plain("é – 漢\u00a0") == "é – 漢\u00a0"
    assert plain("\x1b]52;c;eA==\x07\r\x9b\u202e\udcff") == r"\x1b]52;c;eA==\x07\r\x9b\u202e\udcff"


def test_brackets_and_colons_in_a_cell_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("key", "[b]value[/b]", box=None)
    table.add_row(as_it_is("prompt"), as_it_is("[INST] a [/INST] :warning: [/]\x1b[2J"))
    table.add_row("plain", "[red]x[/red] :smile:")
    table_console().print(table)
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == [
        "key     [b]value[/b]",
        r"prompt  [INST] a [/INST] :warning: [/]\x1b[2J",
        "plain   [red]x[/red] :smile:",
    ]


def test_a_log_does_not_write_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (make(tmp_path / "mine") / "run.log").write_bytes(b"first\n\x1b[2J\x1b]0;owned\x07\xff\n")
    assert main(["logs", str(tmp_path / "mine")]) == 0
    assert capsys.readouterr().out == "first\n\\x1b[2J\\x1b]0;owned\\x07\ufffd\n"


@pytest.mark.parametrize(("place", "name"), [("mine", "."), ("mine/policy", "..")])
def test_a_run_that_is_the_current_folder_has_its_name(
    place: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (make(tmp_path / "mine") / "policy").mkdir()
    monkeypatch.chdir(tmp_path / place)
    assert find_run(Path("runs"), name).path == tmp_path / "mine"


def test_printed_commands_are_quoted(tmp_path: Path) -> None:
    folder = RunFolder(make(tmp_path / "my runs" / "mine"))
    folder.checkpoints.begin(0)
    folder.checkpoints.commit(0, {}, keep=1)
    shown = how_to_resume(folder)
    assert re.search(r" 'run_root='\"'\"'.*/my runs'\"'\"'' continues after iteration 0$", shown), shown


def test_a_run_that_is_a_link_is_not_removed(tmp_path: Path) -> None:
    kept = make(tmp_path / "disk" / "mine")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(kept)
    with pytest.raises(ConfigError, match=r"^run_id=mine: .*/runs/mine is a symbolic link, which is not removed"):
        RunFolder(tmp_path / "runs" / "mine").remove()
    assert sorted(os.listdir(tmp_path / "runs")) == ["mine"] and (kept / "config.yaml").exists()

"""The command line: help, mistakes in options, words that the shell completes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from embodyflow.cli.completion import complete_experiment, complete_flow, complete_run, complete_run_name
from embodyflow.cli.main import app, main
from embodyflow.cli.run_folders.found_runs import find_run
from embodyflow.errors import ConfigError

GROUP: Any = typer.main.get_command(app)


@pytest.mark.parametrize("name", GROUP.commands)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for word in ("--help", "-h"):
        assert main([name, word]) == 0
        shown = capsys.readouterr().out
        assert f"Usage: embodyflow {name}" in shown and GROUP.commands[name].help in shown
        for parameter in GROUP.commands[name].params:
            assert parameter.help and parameter.help.split(";")[0] in shown


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["nope"], "No such command 'nope'"),
        (["run", "--sede", "3"], "No such option: --sede"),
        (["run", "--seed", "three"], "Invalid value for '--seed'"),
        (["plan", "--placement", "anywhere"], "Invalid value for '--placement'"),
        (["ledger"], "Missing argument 'RUN'"),
        (["episodes", "runs/mine", "--page", "0"], "Invalid value for '--page'"),
        (["answer", "mine", "maybe"], "Invalid value for "),
        (["replay", "runs/mine", "abc"], "Invalid value for 'UID'"),
        (["--flow"], "No such option: --flow"),
    ],
)
@pytest.mark.parametrize("columns", ["40", "200"])
def test_a_mistake_in_an_option_is_named_in_one_line(
    words: list[str],
    answer: str,
    columns: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(words) == 2
    shown = capsys.readouterr()
    [line] = shown.err.splitlines()
    assert answer in line and line.startswith("embodyflow") and "--help` says what is allowed" in line
    assert shown.out == ""


def test_no_words_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    shown = capsys.readouterr()
    assert "Usage: embodyflow" in shown.out + shown.err


@pytest.mark.parametrize(("name", "shown"), [("", "''"), ("a\nb", r"'a\nb'"), ("none", "none")])
def test_a_name_of_no_run_is_one_line(name: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.yaml").touch()  # the current folder is no run of the name ""
    (tmp_path / "runs" / "none2" / "config.yaml").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refusal:
        find_run(Path("runs"), name)
    assert str(refusal.value) == f"{shown}: runs/ has no such run; `embodyflow runs` lists them"


def test_hydra_overrides_are_free_words_beside_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("embodyflow.stack.signals.exit_on_signals", lambda: None)
    monkeypatch.setattr("embodyflow.cli.run.run_experiment", lambda flow, words: seen.append((flow, words)) or 0)
    words = ["trainer.epochs=2", "+env.kwargs.size=3", "~warm_start", "reward.function={name: regex, pattern: 'a=b'}"]
    assert main(["run", words[0], "--flow", "ppo", words[1], "--seed", "3", *words[2:]]) == 0
    assert seen == [("ppo", ["seed=3", *words])]


def test_flows_experiments_and_runs_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "grpo" in complete_flow("") and complete_flow("gr") == ["grpo"]
    assert complete_experiment("mt") == ["mt10"]
    for name in ("first", "fast", ".hidden"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.yaml").touch()
    assert complete_run("runs/fi") == ["runs/first"] and complete_run_name("f") == ["fast", "first"]


def test_the_shell_is_given_the_completions(tmp_path: Path) -> None:
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "config.yaml").touch()
    script = "import sys; from embodyflow.cli.main import main; sys.exit(main())"
    root = Path(__file__).resolve().parents[3]
    env = {**os.environ, "PYTHONPATH": str(root), "_EMBODYFLOW_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
    for line, answer in (("embodyflow ledger runs/", "runs/first"), ("embodyflow logs f", "first")):
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            env={**env, "COMP_WORDS": line},
            capture_output=True,
            text=True,
        )
        assert done.stdout.split() == [answer], done.stderr

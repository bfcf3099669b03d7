"""A paused run is answered from the command line, and an answer belongs to its question."""

from pathlib import Path

import pytest

from embodyflow.cli.main import main
from embodyflow.errors import ConfigError
from embodyflow.record.answers import AnswerFile


def test_a_question_is_shown_and_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").touch()
    assert main(["answer", str(tmp_path)]) == 2
    assert "asks nothing" in capsys.readouterr().err
    file = AnswerFile(tmp_path)
    file.ask("7/spike", "the norm is high", ("go_on", "cancel"))
    assert main(["answer", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("the norm is high\nanswer by: ")
    assert main(["answer", str(tmp_path), "roll_back"]) == 2
    assert "roll_back: allowed are go_on, cancel" in capsys.readouterr().err
    assert file.read("7/spike") is None
    assert main(["answer", str(tmp_path), "cancel"]) == 0
    assert file.read("7/spike") == "cancel" and file.read("8/spike") is None


def test_a_question_asked_again_keeps_its_answer_and_another_one_has_none(tmp_path: Path) -> None:
    file = AnswerFile(tmp_path)
    file.ask("7/spike", "high", ("go_on",))
    file.answer("go_on")
    file.ask("7/spike", "high", ("go_on",))
    assert file.read("7/spike") == "go_on"
    file.ask("9/spike", "high", ("go_on",))
    assert file.read("7/spike") is None
    file.close()
    assert file.open_question() is None


@pytest.mark.parametrize("content", ["", "[]", '{"key": "7/spike"', '{"key": "7/spike"}'])
def test_a_damaged_question_or_answer_is_one_line(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").touch()
    for name in ("question", "answer"):
        (tmp_path / f"{name}.json").write_text(content)
    for words in ([], ["go_on"]):
        assert main(["answer", str(tmp_path), *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"{tmp_path}/question.json: is damaged: ")
    with pytest.raises(ConfigError, match=r"answer\.json: is damaged: "):
        AnswerFile(tmp_path).read("7/spike")


def test_the_printed_command_can_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also from a folder whose runs are elsewhere, and with characters that a shell would read."""
    run = tmp_path / "runs; ls" / "mine"
    run.mkdir(parents=True)
    (run / "config.yaml").touch()
    AnswerFile(run).ask("7/spike", "high\x1b[2J", ("go_on", "cancel"))
    assert main(["answer", "mine", "--run-root", str(run.parent)]) == 0
    assert capsys.readouterr().out == f"high\\x1b[2J\nanswer by: embodyflow answer '{run}' go_on|cancel\n"

"""A paused run is answered from the command line, and an answer belongs to its question."""

from pathlib import Path

import pytest

from embodyflow.cli.main import main
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

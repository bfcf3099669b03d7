"""Answers to the question of a paused run, which ``embodyflow answer`` leaves in the run's folder."""

import json
from pathlib import Path

from embodyflow.process.files.durable_files import write_durably


class AnswerFile:
    """The question of a paused run, and its answer.

    Args:
        folder: Folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._question, self._answer = folder / "question.json", folder / "answer.json"

    def ask(self, key: str, text: str, allowed: tuple[str, ...]) -> None:
        """Write a question; the answer to another one is removed.

        Args:
            key: Key of the question, the same in every process of the run.
            text: One line that says what was found.
            allowed: Possible answers.
        """
        if self._answer.exists() and json.loads(self._answer.read_text())["key"] != key:
            self._answer.unlink()
        write_durably(self._question, json.dumps({"key": key, "text": text, "allowed": allowed}))

    def open_question(self) -> tuple[str, tuple[str, ...]] | None:
        """Return the text and the possible answers of the open question; ``None`` without one."""
        if not self._question.exists():
            return None
        asked = json.loads(self._question.read_text())
        return asked["text"], tuple(asked["allowed"])

    def answer(self, answer: str) -> None:
        """Answer the open question."""
        key = json.loads(self._question.read_text())["key"]
        write_durably(self._answer, json.dumps({"key": key, "answer": answer}))

    def read(self, key: str) -> str | None:
        """Return the answer to a question; ``None`` before it."""
        if not self._answer.exists():
            return None
        given = json.loads(self._answer.read_text())
        return str(given["answer"]) if given["key"] == key else None

    def close(self) -> None:
        """Remove the question and its answer."""
        for path in (self._question, self._answer):
            path.unlink(missing_ok=True)

"""Answers to the question of a paused run, which ``embodyflow answer`` leaves in the run's folder."""

import json
from pathlib import Path

from embodyflow.errors import ConfigError
from embodyflow.process.files.durable_files import write_durably
from embodyflow.record.folder_files import read_json


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
        if (given := read_json(self._answer, "key")) is not None and given["key"] != key:
            self._answer.unlink()
        write_durably(self._question, json.dumps({"key": key, "text": text, "allowed": allowed}))

    def open_question(self) -> tuple[str, tuple[str, ...]] | None:
        """Return the text and the possible answers of the open question; ``None`` without one.

        Raises:
            ConfigError: The file of the question is damaged.
        """
        asked = read_json(self._question, "key", "text", "allowed")
        return None if asked is None else (str(asked["text"]), tuple(map(str, asked["allowed"])))

    def answer(self, answer: str) -> None:
        """Answer the open question.

        Raises:
            ConfigError: The file of the question is damaged or gone.
        """
        if (asked := read_json(self._question, "key")) is None:
            raise ConfigError(f"{self._question}: is gone, so nothing is asked")
        write_durably(self._answer, json.dumps({"key": asked["key"], "answer": answer}))

    def read(self, key: str) -> str | None:
        """Return the answer to a question; ``None`` before it.

        Raises:
            ConfigError: The file of the answer is damaged.
        """
        given = read_json(self._answer, "key", "answer")
        return None if given is None or given["key"] != key else str(given["answer"])

    def close(self) -> None:
        """Remove the question and its answer."""
        for path in (self._question, self._answer):
            path.unlink(missing_ok=True)

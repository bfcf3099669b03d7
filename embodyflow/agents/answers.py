"""Journal of tool answers: a repeated rollout reads the answers that the lost one got, instead of acting again."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Outcome = Literal["answer", "mistake", "failure"]


@dataclass(frozen=True)
class Answer:
    """Outcome of one tool call.

    Attributes:
        outcome: ``answer``, the model's ``mistake``, or a ``failure`` after all retries.
        text: What the model reads, or the reason of a failure.
        retries: Number of attempts that failed before.
    """

    outcome: Outcome
    text: str
    retries: int = 0


class AnswerJournal:
    """Answers by episode, draw of the episode and number of the call, in a file of JSON lines.

    Args:
        path: Path of the file, which the first answer creates; ``None`` keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known = {} if path is None or not path.exists() else _read(path)

    def find(self, uid: int, draw: int, call: int) -> Answer | None:
        """Return the answer of an earlier attempt, or ``None``."""
        return self._known.get((uid, draw, call))

    def append(self, uid: int, draw: int, call: int, answer: Answer) -> None:
        """Record an answer before the model reads it."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({"key": [uid, draw, call], **asdict(answer)}) + "\n")


def _read(path: Path) -> dict[tuple[int, int, int], Answer]:
    """Read the complete lines; cut off the part of a line that a killed process left."""
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        path.write_bytes(whole)
    lines = [json.loads(line) for line in whole.splitlines()]
    return {tuple(line["key"]): Answer(line["outcome"], line["text"], line["retries"]) for line in lines}

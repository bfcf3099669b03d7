"""Scores of reasoning-gym's own verifiers, for prompts of :mod:`embodyflow.prompts.reasoning_gym`.

Several verifiers evaluate the answer as Python or by SymPy. Such an answer may never end, so only a manager with a time
limit takes this function.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

from embodyflow.rewards.functions.final_answers import final_text
from embodyflow.rewards.interface import Sample, Score

Verifier: TypeAlias = Callable[[str | None, Mapping[str, Any]], Any]
"""Function of an answer and of the problem's entry that returns a score, 1 for a right answer."""

FAILED = "verifier_failed"
"""Name of the score part that counts answers on which the verifier raised, or gave NaN or inf."""


def score(sample: Sample, marker: str | None = "##") -> Score:
    """Return the score of the verifier of the sample's task; a score of 1 is correct.

    An answer on which the verifier raises, or gives no finite number, is wrong and counted in the part
    ``verifier_failed``, unless the verifier also fails on the answer of the problem itself.

    Args:
        sample: Response whose ``row["entry"]`` is the entry of the dataset, and whose ``row["settings"]`` are those of
            its task, which some verifiers read.
        marker: Text before the answer, the last occurrence counts; ``None`` takes the whole response. A response
            without the marker has no answer, and only the text after any thinking counts.

    Raises:
        ValueError: The row has no entry of reasoning-gym, or the verifier cannot grade the problem.
    """
    entry = sample.row.get("entry")
    if not isinstance(entry, dict):
        raise ValueError("reward=reasoning_gym: needs rows of data=reasoning_gym")
    text = final_text(sample.response)
    _, found, answer = ("", "", text) if marker is None else text.rpartition(marker)
    given = answer.strip() if found or marker is None else None
    verifier = _verifier(sample.data_source, sample.row.get("settings", {}))
    reward = _graded(verifier, given, entry)
    if reward is None and _graded(verifier, entry["answer"], entry) is None:
        raise ValueError(
            f"reward=reasoning_gym: the verifier of {sample.data_source} cannot grade the problem, whose own answer is "
            f"{str(entry['answer'])[:80]!r}"
        )
    return Score(reward or 0.0, reward is not None and reward >= 1.0, {FAILED: float(reward is None)})


def _graded(verifier: Verifier, answer: str | None, entry: Mapping[str, Any]) -> float | None:
    """Return the score of an answer; ``None`` if the verifier raises or gives no finite number."""
    try:
        reward = float(verifier(answer, entry))
    except (Exception, SystemExit):  # an answer that is evaluated may raise anything; score() tells whose fault it is
        return None
    return reward if math.isfinite(reward) else None


@dataclass(frozen=True)
class _Task:
    """A task; those with the same name and ``written`` settings have the same verifier."""

    name: str
    written: str
    settings: Mapping[str, Any] = field(compare=False)


def _verifier(task: str, settings: Mapping[str, Any]) -> Verifier:
    """Return the verifier of a task with settings: with others, it may refuse or misjudge right answers."""
    return _build(_Task(task, repr(settings), settings))


@cache
def _build(task: _Task) -> Verifier:
    from reasoning_gym.factory import create_dataset  # an extra

    verifier: Verifier = create_dataset(task.name, **{**task.settings, "seed": 0}).score_answer
    return verifier

"""Scores of reasoning-gym's own verifiers, for prompts of :mod:`embodyflow.prompts.reasoning_gym`."""

from functools import cache
from typing import Any

from embodyflow.rewards.functions.final_answers import final_text
from embodyflow.rewards.interface import Sample, Score


def score(sample: Sample, marker: str | None = "##") -> Score:
    """Return the score of the verifier of the sample's task; a score of 1 is correct.

    Args:
        sample: Response whose ``row["entry"]`` is the entry of the dataset.
        marker: Text before the answer, the last occurrence counts; ``None`` takes the whole response. A response
            without the marker has no answer, and only the text after any thinking counts.

    Raises:
        ValueError: The row has no entry of reasoning-gym.
    """
    entry = sample.row.get("entry")
    if not isinstance(entry, dict):
        raise ValueError("reward=reasoning_gym: needs rows of data=reasoning_gym")
    text = final_text(sample.response)
    _, found, answer = ("", "", text) if marker is None else text.rpartition(marker)
    given = answer.strip() if found or marker is None else None
    reward = float(_verifier(sample.data_source)(given, entry))
    return Score(reward, reward >= 1.0)


@cache
def _verifier(task: str) -> Any:
    from reasoning_gym import get_score_answer_fn  # an extra

    return get_score_answer_fn(task)

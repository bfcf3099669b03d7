"""Verifiers that compare the final answer of a response with the ground truth as text or as a number.

A wrong or missing answer scores 0; an invalid ground truth is an error.
"""

import re

from embodyflow.rewards.functions.written_numbers import parse_number
from embodyflow.rewards.interface import Sample, Score, outcome
from embodyflow.rewards.reward_config import ExactMatchConfig, RegexConfig

GSM8K_MARKER = "####"


def exact_match(sample: Sample, config: ExactMatchConfig) -> Score:
    """Compare the text after the marker with the ground truth."""
    _, found, answer = sample.response.rpartition(config.marker) if config.marker else ("", "all", sample.response)
    return _score_answer(answer if found else None, sample)


def regex(sample: Sample, config: RegexConfig) -> Score:
    """Compare the group in the pattern's last match with the ground truth."""
    answers = re.findall(config.pattern, sample.response)
    return _score_answer(answers[-1] if answers else None, sample)


def gsm8k(sample: Sample) -> Score:
    """Compare the number after the last ``####`` with the number in the ground truth.

    Raises:
        ValueError: The ground truth contains no number.
    """
    truth = str(sample.ground_truth)
    expected = parse_number(truth.rpartition(GSM8K_MARKER)[2])
    if expected is None:
        raise ValueError(f"ground_truth={truth!r} is not a number and has no number after its last {GSM8K_MARKER}")
    _, found, rest = sample.response.rpartition(GSM8K_MARKER)
    answer = parse_number(rest.strip().partition("\n")[0]) if found else None
    return outcome(answer == expected, answered=answer is not None)


def _score_answer(answer: str | None, sample: Sample) -> Score:
    correct = answer is not None and answer.strip() == str(sample.ground_truth).strip()
    return outcome(correct, answered=answer is not None)

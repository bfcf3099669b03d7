"""Verifiers: is the response's final answer the ground truth?

A wrong or missing answer is a score of 0; a ground truth that cannot be one is an error.
"""

import re

from embodyflow.rewards.functions.written_numbers import parse_number
from embodyflow.rewards.reward_config import ExactMatchConfig, RegexConfig
from embodyflow.rewards.reward_interface import Sample, Score, outcome

GSM8K_MARKER = "####"


def exact_match(sample: Sample, config: ExactMatchConfig) -> Score:
    """Compare the text after the marker with the ground truth."""
    _, found, answer = sample.response.rpartition(config.marker) if config.marker else ("", "all", sample.response)
    return _compared(answer if found else None, sample)


def regex(sample: Sample, config: RegexConfig) -> Score:
    """Compare what the pattern's last match has in its group with the ground truth."""
    answers = re.findall(config.pattern, sample.response)
    return _compared(answers[-1] if answers else None, sample)


def gsm8k(sample: Sample) -> Score:
    """Compare the number after the last ``####`` with the ground truth's.

    Raises:
        ValueError: the ground truth is no number.
    """
    truth = str(sample.ground_truth)
    wanted = parse_number(truth.rpartition(GSM8K_MARKER)[2])
    if wanted is None:
        raise ValueError(f"ground_truth={truth!r} is not a number, nor a text with one after its last {GSM8K_MARKER}")
    _, found, rest = sample.response.rpartition(GSM8K_MARKER)
    answer = parse_number(rest.strip().partition("\n")[0]) if found else None
    return outcome(answer == wanted, answered=answer is not None)


def _compared(answer: str | None, sample: Sample) -> Score:
    correct = answer is not None and answer.strip() == str(sample.ground_truth).strip()
    return outcome(correct, answered=answer is not None)

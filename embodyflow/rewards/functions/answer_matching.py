"""Verifiers that compare the final answer of a response with the ground truth as text or as a number.

Only the text after any thinking counts. A wrong or missing answer scores 0; an invalid ground truth is an error.
"""

import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

from embodyflow.rewards.functions.arithmetic import is_rounded, value_of
from embodyflow.rewards.functions.final_answers import GOLD_MARKER, final_text, golds_of, without_lead_in
from embodyflow.rewards.functions.written_numbers import parse_number, parse_plain_number
from embodyflow.rewards.interface import Sample, Score, outcome
from embodyflow.rewards.reward_config import ExactMatchConfig, RegexConfig

_EQUALS = re.compile(r"(?<![<>!])=")
_CALCULATION = re.compile(r"<<[^<>]*>>")


def exact_match(sample: Sample, config: ExactMatchConfig) -> Score:
    """Compare the text after the marker with the ground truth."""
    text = final_text(sample.response)
    _, found, answer = text.rpartition(config.marker) if config.marker else ("", "all", text)
    return _score_answer(answer if found else None, text_golds(sample.ground_truth, config.marker))


def regex(sample: Sample, config: RegexConfig) -> Score:
    """Compare the group in the pattern's last match with the ground truth."""
    answers = re.findall(config.pattern, final_text(sample.response))
    return _score_answer(answers[-1] if answers else None, text_golds(sample.ground_truth, None))


def gsm8k(sample: Sample) -> Score:
    """Compare the number after the last ``####`` with the number in the ground truth.

    Raises:
        ValueError: The ground truth contains no number.
    """
    golds = number_golds(sample.ground_truth)
    _, found, rest = final_text(sample.response).rpartition(GOLD_MARKER)
    answer = _number_of(rest.strip().partition("\n")[0]) if found else None
    return outcome(answer in golds, answered=answer is not None)


def text_golds(ground_truth: Any, marker: str | None, column: str = "ground_truth") -> list[str]:
    """Return the golds of a ground truth as texts: what follows the marker, or ``####``, if it is there.

    Raises:
        ValueError: The ground truth is no text, number or list of them, or is empty; the message names ``column``.
    """
    texts = [gold.rpartition(GOLD_MARKER)[2] for gold in golds_of(ground_truth, column)]
    golds = [text.rpartition(marker)[2] if marker else text for text in texts]
    for gold in golds:
        if not _plain(gold):
            raise ValueError(f"{column}={ground_truth!r} has no answer; allowed is a text that is not empty")
    return golds


def number_golds(ground_truth: Any, column: str = "ground_truth") -> list[Decimal]:
    """Return the golds of a ground truth as numbers, from after the last ``####`` of a worked answer.

    Raises:
        ValueError: A gold contains no number; the message names ``column``.
    """
    numbers = []
    for gold in golds_of(ground_truth, column):
        number = _number_of(gold.rpartition(GOLD_MARKER)[2])
        if number is None:
            raise ValueError(f"{column}={gold!r} is not a number and has no number after its last {GOLD_MARKER}")
        numbers.append(number)
    return numbers


def _number_of(text: str) -> Decimal | None:
    """Return the number of an answer such as ``18``, ``9 * 2 = 18`` or ``9 * 2 = <<9*2=18>>18``.

    A false equation, such as ``6 = 5`` or ``2 + 2 = 5``, is no answer. A side may be rounded: ``10 / 3 = 3.33``.
    """
    *sides, last = _EQUALS.split(_CALCULATION.sub("", text))
    number = parse_number(last)
    if number is None or not all(_may_equal(side, number, is_share="%" in last) for side in sides):
        return None
    return number


def _may_equal(side: str, number: Decimal, *, is_share: bool) -> bool:
    """Return True unless a side of an equation is another number, or a calculation with another value."""
    if (value := value_of(side)) is None:
        return True
    is_number = parse_plain_number(side) is not None
    return any(
        each == Fraction(number) if is_number else is_rounded(each, number)
        for each in ((value, value * 100) if is_share else (value,))
    )


def _score_answer(answer: str | None, golds: list[str]) -> Score:
    correct = answer is not None and any(_same(answer, gold) for gold in golds)
    return outcome(correct, answered=answer is not None)


def _same(answer: str, gold: str) -> bool:
    """Return True if two texts are equal, or are numbers of equal value such as ``1,234`` and ``1234.0``."""
    one, other = _plain(answer), _plain(gold)
    if one == other:
        return True
    number = parse_plain_number(one)
    return number is not None and number == parse_plain_number(other)


def _plain(text: str) -> str:
    return without_lead_in(text)

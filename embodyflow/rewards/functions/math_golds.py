"""Golds of mathematical answers: what is the answer in a ground truth, and what cannot be one."""

import re
from typing import Any

from embodyflow.rewards.functions.answer_syntax import Words, parse_answer
from embodyflow.rewards.functions.final_answers import GOLD_MARKER, extract_boxed, golds_of, without_lead_in
from embodyflow.rewards.functions.latex_text import key_of, normalize

MOST_WORDS = 8
"""Longest text that counts as an answer in words; a longer one is prose."""
MOST_WORDS_WITH_NUMBERS = 3


def parse_golds(ground_truth: Any, column: str = "ground_truth") -> list[str]:
    r"""Return the golds of a ground truth: the last box, else what follows ``####`` or ``The answer is``.

    Raises:
        ValueError: The ground truth is no text, number or list of them, is empty, or is prose; the message names
            ``column``.
    """
    return [_parse_gold(gold, column) for gold in golds_of(ground_truth, column)]


def _parse_gold(text: str, column: str) -> str:
    boxed = extract_boxed(text)
    gold = boxed if boxed is not None else without_lead_in(text.rpartition(GOLD_MARKER)[2])
    if not key_of(normalize(gold)):
        raise ValueError(f"{column}={text!r} cannot be parsed as LaTeX")
    answer = parse_answer(gold)
    if isinstance(answer, Words):
        words = re.findall(r"[a-z]{2,}", answer.text)
        allowed = MOST_WORDS_WITH_NUMBERS if re.search(r"\d", answer.text) else MOST_WORDS
        if len(words) > allowed:
            raise ValueError(f"{column}={text!r} is prose; allowed is the answer alone, such as 34 or \\frac{{1}}{{2}}")
    return gold

"""Golds of mathematical answers: what is the answer in a ground truth, and what cannot be one."""

import re
from typing import Any

from embodyflow.rewards.functions.answer_syntax import Answer, Items, Words, parse_answer
from embodyflow.rewards.functions.final_answers import GOLD_MARKER, extract_boxed, golds_of, without_lead_in
from embodyflow.rewards.functions.latex_text import key_of, normalize, words_of
from embodyflow.rewards.functions.units import is_known

MOST_WORDS = 8
"""Longest text that counts as an answer in words; a longer one is prose."""
MOST_WORDS_WITH_NUMBERS = 2
_SENTENCE = re.compile(
    r"\b(?:is|are|was|were|be|has|have|had|gets?|makes?|needs?|equals?|will|there|the|he|she|it|they|we|so|thus|answer)\b"
)


def parse_golds(ground_truth: Any, column: str = "ground_truth") -> list[str]:
    r"""Return the golds of a ground truth: the last box, else what follows ``####`` or ``The answer is``.

    Raises:
        ValueError: The ground truth is no text, number or list of them, is empty, or is prose; the message names
            ``column``.
    """
    return [_parse_gold(gold, column) for gold in golds_of(ground_truth, column)]


def _parse_gold(text: str, column: str) -> str:
    boxed = extract_boxed(text)
    gold = without_lead_in(boxed if boxed is not None else text.rpartition(GOLD_MARKER)[2])
    normalized = normalize(gold)
    if not key_of(normalized):
        raise ValueError(f"{column}={text!r} cannot be parsed as LaTeX; allowed is an answer")
    if _has_words(parse_answer(gold)) and _is_prose(words_of(normalized)):
        raise ValueError(f"{column}={text!r} is prose; allowed is the answer alone, such as 34 or \\frac{{1}}{{2}}")
    return gold


def _has_words(answer: Answer) -> bool:
    return isinstance(answer, Words) or (isinstance(answer, Items) and any(map(_has_words, answer.items)))


def _is_connective(word: str) -> bool:
    """Return True for units and ``and`` in an answer such as ``5 hours and 20 minutes``."""
    return word in ("and", "or") or is_known(word, spaced=True)


def _is_prose(text: str) -> bool:
    words = [word for word in re.findall(r"(?<!\\)\b[a-z]{2,}", text) if not _is_connective(word)]
    if re.search(r"\d", text):
        return len(words) > MOST_WORDS_WITH_NUMBERS or bool(_SENTENCE.search(text))
    return len(words) > MOST_WORDS

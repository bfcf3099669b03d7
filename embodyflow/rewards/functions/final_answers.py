"""Finding the final answer in a response, and the golds in a ground truth."""

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

BOX = r"\boxed"
THINK, END_OF_THINKING = "<think>", "</think>"
GOLD_MARKER = "####"
"""Marker before the final answer of a worked gold, as in GSM8K."""

_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace does not count
_ANSWER_IS = re.compile(
    r"^(?:(?:(?:so|thus|hence|therefore)\b,?\s*)?(?:(?:the|my|our)\s+)?(?:final\s+|correct\s+)?"
    r"(?:answer|result|solution|ans\.?|a(?=\s*:))(?:\s*(?:[:=]|\bis\b|\bequals\b))+\s*|=\s*)+(?P<answer>.+)$",
    re.IGNORECASE | re.DOTALL,
)


def final_text(response: str) -> str:
    """Return the text after the last ``</think>``; thinking that does not end has no text after it."""
    return response.rpartition(END_OF_THINKING)[2].partition(THINK)[0]


def extract_boxed(text: str) -> str | None:
    r"""Return the content of the last ``\boxed{…}``, with balanced braces; ``None`` without a box."""
    _, found, rest = text.rpartition(BOX)
    rest = rest.lstrip()
    if not found or not rest.startswith("{"):
        return None
    depth = 0
    for brace in _BRACE.finditer(rest):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return rest[1 : brace.start()]
    return None


def without_lead_in(text: str) -> str:
    """Return the answer without words such as ``The answer is``, and without a period at its end."""
    text = text.strip()
    found = _ANSWER_IS.match(text)
    text = (found["answer"] if found else text).strip()
    return text[:-1].rstrip() if text.endswith(".") and not text.endswith("..") else text


def golds_of(ground_truth: Any, column: str = "ground_truth") -> list[str]:
    """Return the golds of a ground truth as texts; an answer needs to match only one of them.

    Args:
        ground_truth: A text, a number, or a list of texts and numbers.
        column: Name of the ground truth in errors.

    Raises:
        ValueError: The ground truth is of another kind or empty.
    """
    is_list = isinstance(ground_truth, Sequence) and not isinstance(ground_truth, str | bytes)
    values = list(ground_truth) if is_list else [ground_truth]
    if not values:
        raise ValueError(f"{column} is an empty list; allowed is a list of texts and numbers")
    return [_gold(value, column) for value in values]


def _gold(value: Any, column: str) -> str:
    if isinstance(value, Mapping):
        nested = "ground_truth" if "ground_truth" in value else next(iter(value), "ground_truth")
        name = f"reward_model.{nested}" if column == "ground_truth" else f"{column}.{nested}"
        raise ValueError(
            f"{column} is a mapping with {', '.join(map(str, value))}; allowed are a text, a number and a list of "
            f"them, here the nested column {name}"
        )
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{column} is {value!r}; allowed are a text, a number and a list of them")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{column} is {value!r}; allowed are finite numbers")
        return str(int(value)) if value.is_integer() else f"{Decimal(repr(value)):f}"
    if not str(value).strip():
        raise ValueError(f"{column}={value!r} cannot be parsed; allowed is a text that is not empty")
    return str(value)

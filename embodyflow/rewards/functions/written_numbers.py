"""Parsing of numbers as people write them."""

import re
from decimal import Decimal

from embodyflow.rewards.functions.characters import COUNTED_WITH_NUMBER, with_plain_digits
from embodyflow.rewards.functions.number_surroundings import may_follow, may_precede

# A sign and a currency sign in either order, thousands in groups of three, decimals; "$1,234.50", "-£5", "-.5", "50%".
_NUMBER = re.compile(
    r"(?P<sign>[-+]?)\s?(?:\\?[$€£¥₹]\s?)?(?P<second_sign>[-+]?)"
    r"(?P<digits>(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)"
    rf"(?!\d|[.,:]\d|\s?[{COUNTED_WITH_NUMBER}])",
    re.ASCII,
)
# Thousands as LaTeX separates them: "1{,}234", "1\\,234", "1\\ 234"; with spaces "1 234".
_LATEX_THOUSANDS = re.compile(
    r"(?<![\d.,])\d{1,3}(?:(?:\{,\}|,\\!|\\[,;:! ]|~|[ \u00a0\u2009\u202f])\d{3})+(?![\d]|[.,:]\d{4})", re.ASCII
)
_PLAIN = re.compile(r"[-+]?\s?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|[-+]?\.\d+", re.ASCII)
_DIGIT = re.compile(r"\d", re.ASCII)


def parse_number(text: str) -> Decimal | None:
    """Return the number in ``text``, which may also contain words, units or a currency sign.

    Return ``None`` if there is no number, or if it is ambiguous: ``3/4``, ``10 or 12``, ``1,5``, ``3½``, ``minus 5``,
    ``-(5)``, ``not 5``, ``< 5``, ``√5``, ``half of 5``, ``5!``, ``5x``, ``5 squared``, ``5 million``, ``5 - x`` and
    ``5 or six`` do not count as numbers.
    """
    text = _LATEX_THOUSANDS.sub(lambda number: re.sub(r"\D", "", number[0]), with_plain_digits(text))
    first_digit, found = _DIGIT.search(text), _NUMBER.search(text)
    if first_digit is None or found is None:
        return None
    if found.start("digits") > first_digit.start() or _DIGIT.search(text, found.end()):
        return None
    if found["sign"] and found["second_sign"]:
        return None
    sign = text[found.start() : found.start("digits")].lstrip()
    before = text[: found.start("digits") - len(sign)]
    if not may_precede(before, sign=sign) or not may_follow(text[found.end() :]):
        return None
    number = Decimal(found["digits"].replace(",", ""))
    negative = (found["sign"] or found["second_sign"]) == "-"
    return number.copy_negate() if negative else number  # the operator would round to 28 digits


def parse_plain_number(text: str) -> Decimal | None:
    """Return the number that a text is, without words, units or a currency sign; ``None`` for other texts."""
    text = _LATEX_THOUSANDS.sub(lambda number: re.sub(r"\D", "", number[0]), with_plain_digits(text).strip())
    if not _PLAIN.fullmatch(text):
        return None
    return Decimal(re.sub(r"[\s,]", "", text))

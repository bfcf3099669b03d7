"""Parsing of numbers as people write them."""

import re
from decimal import Decimal

from embodyflow.rewards.functions.characters import COUNTED_WITH_NUMBER, with_plain_digits

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
# Words and signs before a number which say that it is another one.
_DENIED = re.compile(
    r"\b(?:minus|negative|not|never|neither|cannot|(?:less|fewer|more|greater) than|at (?:least|most))\b"
    r"|n['’]t\b|[<>≤≥≠±⁻]|!=|\+/-|\\(?:pm|mp|neg|ne|le|ge|lt|gt)(?![a-z])",
    re.IGNORECASE,
)
# A minus that is neither the number's own sign nor a hyphen within a word nor before an item of a list: "-(5)", "-R$5".
_OTHER_MINUS = re.compile(r"(?<!\w)-(?! [a-z])|-(?=[^\w\s])", re.IGNORECASE)
# Words and signs right before a number that make another number of it.
_CHANGED_BEFORE = re.compile(
    r"(?:√|\b(?:sqrt|log|ln|exp|sin|cos|tan|root of|half(?: of)?|(?:quarter|third|percent|square|cube) of|twice|double"
    r"|triple|times|plus|or))\s*[({\[|]*\s*$|(?:^|\s)—$",
    re.IGNORECASE,
)
# Words and signs right after a number that make another number of it.
_CHANGED = re.compile(
    r"\s*(?:hundred|thousand|million|billion|trillion|dozen|doubled|tripled|halved|to the power|squared|cubed|factorial"
    r"|hal(?:f|ves)|thirds?|(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand|million)ths)s?\b"
    r"|(?-i:[kKMB]|bn|mn)\b|i\b|\s*(?:\\?pi\b|π|√|\\sqrt)|\s*\^(?!\s*\{?\\circ)"
    r"|\s*(?:-\s*\(?[a-z]|\*\s*\(?[xyznk])\b|\s*(?:[+×÷·]|\\(?:times|cdot|div|pm)(?![a-z]))\s*[(\\a-z]",
    re.IGNORECASE,
)
# Words anywhere after a number that offer another one, or take it back.
_TAKEN_BACK = re.compile(
    r"\b(?:or|and an? (?:half|quarter|third)|is not|wrong|incorrect)\b|\bisn['’]t\b", re.IGNORECASE
)
_DIGIT = re.compile(r"\d", re.ASCII)


def parse_number(text: str) -> Decimal | None:
    """Return the number in ``text``, which may also contain words, units or a currency sign.

    Return ``None`` if there is no number, or if it is ambiguous: ``3/4``, ``10 or 12``, ``1,5``, ``3½``, ``minus 5``,
    ``-(5)``, ``not 5``, ``< 5``, ``√5``, ``half of 5``, ``5 squared``, ``5 million``, ``5 - x`` and ``5 or six`` do not
    count as numbers.
    """
    text = _LATEX_THOUSANDS.sub(lambda number: re.sub(r"\D", "", number[0]), with_plain_digits(text))
    first_digit, found = _DIGIT.search(text), _NUMBER.search(text)
    if first_digit is None or found is None:
        return None
    if found.start("digits") > first_digit.start() or _DIGIT.search(text, found.end()):
        return None
    if (found["sign"] and found["second_sign"]) or _DENIED.search(text, 0, found.start("digits")):
        return None
    if _OTHER_MINUS.search(text[: found.start()]) or _CHANGED_BEFORE.search(text[: found.start()]):
        return None
    if _CHANGED.match(text, found.end()) or _TAKEN_BACK.search(text, found.end()):
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

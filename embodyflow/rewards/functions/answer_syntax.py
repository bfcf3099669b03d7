"""Structure of an answer: words, a clock time, a number in a base, a quantity, a list, an equation or a formula."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

from embodyflow.rewards.functions.latex_text import key_of, normalize, words_of
from embodyflow.rewards.functions.units import Unit, changes_number, is_known, parse_unit


@dataclass(frozen=True)
class Words:
    """A text that is compared as text."""

    text: str


@dataclass(frozen=True)
class Clock:
    """A time of day, or another pair of numbers such as ``3:45``.

    Attributes:
        fields: Hours, minutes and perhaps seconds.
        half: ``am``, ``pm`` or, if the text does not say, an empty text.
    """

    fields: tuple[int, ...]
    half: str


@dataclass(frozen=True)
class Ratio:
    """Numbers with colons between them."""

    parts: tuple["Answer", ...]


@dataclass(frozen=True)
class Based:
    """A number in a base, such as ``101_2``."""

    digits: str
    base: int


@dataclass(frozen=True)
class Quantity:
    """A value with a unit; a percent sign is a unit."""

    value: "Answer"
    unit: Unit


@dataclass(frozen=True)
class Items:
    """Several answers.

    Attributes:
        brackets: Opening and closing bracket, such as ``()`` or ``[)``; ``{}`` for a set, empty for a bare list.
        items: Answers, in order.
        latex: Text of all of it, for comparison with an inequality or a union.
    """

    brackets: str
    items: tuple["Answer", ...]
    latex: str = field(default="", compare=False)


@dataclass(frozen=True)
class Assignment:
    """An equation whose left side is a name, such as ``x = 5`` or ``f(x) = 2x``."""

    name: str
    value: "Answer"
    latex: str = field(default="", compare=False)


@dataclass(frozen=True)
class Chain:
    """Constants that the text says are equal, such as ``2 + 3 = 5``; if they are not, it is no answer.

    Attributes:
        value: Last side of the equation.
        constants: Sides without variables, in order; at least two.
        is_rounded: True if a sign says that sides are equal when rounded.
    """

    value: "Answer"
    constants: tuple["Answer", ...]
    is_rounded: bool


@dataclass(frozen=True)
class Formula:
    """A formula, in normalized LaTeX."""

    latex: str


Answer: TypeAlias = Words | Clock | Ratio | Based | Quantity | Items | Assignment | Chain | Formula

_HALF = r"(?P<half>[ap]\.?\s?m\b\.?)"
_CLOCK = re.compile(rf"(?P<fields>\d{{1,2}}(?::\d{{2}}){{1,2}})\s*{_HALF}?", re.IGNORECASE)
_HOUR = re.compile(rf"(?P<fields>\d{{1,2}})\s*{_HALF}", re.IGNORECASE)
_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}")
_BASES = [
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
]
_BASED = re.compile(r"\(?(?P<digits>[0-9A-Za-z]+)\)?\s*(?:_|base)\s*(?P<base>\d{1,2}|[a-z]+)", re.IGNORECASE)
_VALUE = (
    r"[-+]?\s*(?:\d+\s+\d+/\d+|\d[\d.,]*(?:\s*/\s*\d+)?|\d*\s*\\frac\{[^{}]*\}\{[^{}]*\}"
    r"|\d*\s*\\sqrt\{[^{}]*\}|\d*\\pi)"
)
_BARE_UNIT = re.compile(rf"(?P<value>{_VALUE})(?P<space>\s*)(?P<unit>[A-Za-z][A-Za-z./ ]*(?:\^\{{?-?\d\}}?)?)")
_CURRENCY = re.compile(r"(?P<sign>[-+]?)\s*(?P<unit>\\\$|[$€£¥₹])\s*(?P<value>.+)", re.DOTALL)
_PERCENT = re.compile(r"(?P<value>.+?)\s*(?:\\%|%|(?:\\text\{)?\s*\bpercent\s*\}?)", re.DOTALL)
_TEXT_UNIT = re.compile(r"(?P<value>.+?)\s*(?P<unit>(?:\^\\circ\s*)?\\text\{[^{}]*[A-Za-z][^{}]*\}.*)", re.DOTALL)
_DEGREE = re.compile(r"(?P<value>.+?)\s*\^\\circ\s*(?P<scale>[CF]?)", re.DOTALL)
_NAME = re.compile(
    r"(?:[A-Za-z]|\\[a-zA-Z]+|\\text\{[^{}]*\})(?:_\{?\w+\}?)?(?:\([^()=]*\))?'?"
    r"|(?:\\\w+\s*)?[A-Za-z]{2,}|[A-Za-z]\^\{-1\}\(\w\)"
)
_EQUALS = re.compile(r"(?<![<>!\\=]):?==?(?!=)|\\approx(?![a-z])|\\equiv(?![a-z])")
_MEMBER = re.compile(r"[A-Za-z]\s*\\in\s*(?=[(\[\\{])")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_PLAIN_WORDS = re.compile(r"[A-Za-z][A-Za-z'.\-]*(?:\s+[A-Za-z][A-Za-z'.\-]*)*")
# Letters that stand side by side as a product of variables: xy, ab, mn, …
_VARIABLES = tuple(map(frozenset, ("abcd", "xyzwt", "kmn", "pqrs", "uvw", "nkr", "rst", "xyab", "mnxy", "hr", "lw")))
_BRACKET = re.compile(r"\\[{}]|[()\[\]{}]|\\langle|\\rangle|\\begin\{\w+\*?\}|\\end\{\w+\*?\}")
_SIGNS = (("pm", "mp"), ("mp", "pm"))
_JOINTS = re.compile(
    r"[,;]|\\text\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|\\(?:vee|lor)(?![a-z])"
)


@lru_cache(maxsize=1024)
def parse_answer(latex: str) -> Answer:
    """Return the structure of an answer, which is LaTeX or plain text."""
    text = normalize(latex)
    return _parse(text) if parse_rational(text) is None else Formula(text)


def parse_list(latex: str) -> Answer | None:
    """Return an answer such as ``100,200,300`` as a list, where commas might separate thousands, else ``None``."""
    if not re.fullmatch(r"\s*\d{1,3}(?:,\d{3})+\s*", latex):
        return None
    return Items("", tuple(Formula(part.strip()) for part in latex.split(",")))


def _parse(text: str) -> Answer:
    text = _strip_text(text.strip())
    text = _MEMBER.sub("", text, count=1) if _MEMBER.match(text) else text
    return _parse_special(text) or _parse_items(text) or _parse_equation(text) or _parse_single(text)


def _strip_text(text: str) -> str:
    r"""Return the content if the whole text is one ``\text{…}`` or one pair of braces."""
    found = re.fullmatch(r"\\text\{([^{}]*)\}|\{([^{}]*)\}", text)
    if found:
        return _strip_text(normalize(found[1] if found[1] is not None else found[2]))
    choice = re.fullmatch(r"([A-Z])\)", text)  # a choice such as "B)"
    return choice[1] if choice else text


def _parse_special(text: str) -> Answer | None:
    """Return a date, a clock time or a number in a base."""
    plain = re.sub(r"\s+", " ", re.sub(r"\\text\{([^{}]*)\}", r" \1", text)).strip()
    if _DATE.fullmatch(plain):
        return Words(re.sub(r"\b0+(?=\d)", "", plain))
    if found := _CLOCK.fullmatch(plain) or _HOUR.fullmatch(plain):
        half = re.sub(r"[^apm]", "", (found["half"] or "").lower())
        return Clock(tuple(map(int, found["fields"].split(":"))), half)
    based = re.sub(r"[{}]", " ", plain.replace("_", "_ ")) if "_" in plain else plain
    based = re.sub(r"_\s*\(?\s*(?:base\s*)?([0-9a-z]+)\s*\)?\s*$", r"_\1", based, flags=re.IGNORECASE).strip()
    if found := _BASED.fullmatch(based):
        base = int(found["base"]) if found["base"].isdigit() else _base_word(found["base"])
        if 2 <= base <= 36 and found["digits"][0].isalnum() and _are_digits(found["digits"], base):
            return Based(found["digits"].upper().lstrip("0") or "0", base)
    return None


def _base_word(word: str) -> int:
    return _BASES.index(word.lower()) + 2 if word.lower() in _BASES else 0


def _are_digits(digits: str, base: int) -> bool:
    return any(digit.isdigit() for digit in digits) and all(int(digit, 36) < base for digit in digits)


def _parse_items(text: str) -> Answer | None:
    """Return a list, tuple, interval or set, or what stands in superfluous parentheses."""
    parts = _split(text, _JOINTS)
    if len(parts) > 1:
        return Items("", tuple(_parse(part) for part in parts), text)
    plus_minus = re.search(r"\\(pm|mp)(?![a-zA-Z])", text)
    if plus_minus:
        both = [
            re.sub(rf"\\{one}(?![a-zA-Z])", "+", re.sub(rf"\\{other}(?![a-zA-Z])", "-", text)) for one, other in _SIGNS
        ]
        return Items("", tuple(_parse(each.lstrip("+ ")) for each in both))
    inside = _enclosed(text)
    if inside is None:
        return None
    brackets, content = inside
    parts = _split(content, re.compile(r"[,;]"))
    if brackets == "{}":
        return Items("{}", tuple(_parse(part) for part in parts if part), text) if "|" not in content else None
    if len(parts) > 1:
        return Items(brackets, tuple(_parse(part) for part in parts), text)
    return _parse(content) if brackets == "()" and content else None


def _enclosed(text: str) -> tuple[str, str] | None:
    """Return the brackets around the whole text and what they enclose."""
    names = {"\\{": "{", "\\}": "}", "\\langle": "(", "\\rangle": ")"}
    depth = 0
    found = list(_BRACKET.finditer(text))
    if len(found) < 2 or found[0].start() != 0 or found[-1].end() != len(text):
        return None
    for bracket in found:
        depth += 1 if bracket[0].lstrip("\\")[:1] in ("(", "[", "{", "l", "b") else -1
        if depth == 0 and bracket is not found[-1]:
            return None
    opening, closing = (names.get(each[0], each[0]) for each in (found[0], found[-1]))
    if opening + closing not in ("()", "[]", "(]", "[)", "{}") or found[0][0] == "{":
        return None
    return opening + closing, text[found[0].end() : found[-1].start()].strip()


def _split(text: str, joint: re.Pattern[str]) -> list[str]:
    """Split a text at the joints outside brackets; empty parts are left out."""
    spans = []
    depth, last = 0, 0
    openings = {"(", "[", "{", "\\{", "\\langle"}
    marks = sorted([*_BRACKET.finditer(text), *joint.finditer(text)], key=lambda found: (found.start(), -found.end()))
    for mark in marks:
        if mark.start() < last:
            continue
        if mark.re is _BRACKET:
            depth += 1 if mark[0] in openings or mark[0].startswith("\\begin") else -1
        elif depth == 0:
            spans.append((mark.start(), mark.end()))
            last = mark.end()
    edges = [0, *[edge for span in spans for edge in span], len(text)]
    return [part for start, end in zip(edges[::2], edges[1::2], strict=True) if (part := text[start:end].strip())]


def _parse_equation(text: str) -> Answer | None:
    sides = [side.strip() for side in _EQUALS.split(text)]
    if len(sides) < 2 or not all(sides) or re.search(r"[<>]|\\(?:le|ge|ne|lt|gt|pmod|mod)(?![a-z])", text):
        return None
    if re.fullmatch(r"\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])+\s*\)", sides[0]):  # (x, y) = (1, 2)
        return _parse(sides[-1])
    if _NAME.fullmatch(sides[0]):
        return Assignment(key_of(sides[0]), _value_of(sides[1:], text), text)
    return _value_of(sides, text) if _is_constant(sides[0]) else None  # 9 * 2 = 18


def _value_of(sides: Sequence[str], text: str) -> Answer:
    """Return the last side of an equation, with the constants that must be equal to it and to each other."""
    value, constants = _parse(sides[-1]), tuple(_parse(side) for side in sides if _is_constant(side))
    return Chain(value, constants, r"\approx" in text) if len(constants) > 1 else value


def _is_constant(text: str) -> bool:
    """Return True if a text has no letters, besides those of commands."""
    return not re.search(r"[A-Za-z]", re.sub(r"\\[a-zA-Z]+", "", text))


def _parse_single(text: str) -> Answer:
    """Return a quantity, words, a ratio or a formula."""
    if quantity := _parse_quantity(text):
        return quantity
    if is_text(text):
        return Words(words_of(text))
    parts = _split(text, re.compile(r":"))
    if len(parts) > 1 and "|" not in text and not any(is_text(part) for part in parts):
        return Ratio(tuple(Formula(part) for part in parts))
    return Formula(text)


def is_text(text: str) -> bool:
    """Return True if a text is words and no formula."""
    if r"\text{" in text or re.search(r"(?<![\\A-Za-z])[A-Za-z]?[a-z]{2,}\s+[A-Za-z]{2,}", text):
        return bool(re.search(r"[A-Za-z]", re.sub(r"\\text\{([^{}]*)\}", r"\1", text)))
    if not _PLAIN_WORDS.fullmatch(text):
        return bool(re.fullmatch(r"[A-Za-z]{3,}\.?,?\s+\d+.*|\d+(?:st|nd|rd|th)", text))
    letters = re.sub(r"[^A-Za-z]", "", text)
    return len(letters) > 1 and not _is_product(text)


def _is_product(text: str) -> bool:
    """Return True if letters side by side are variables."""
    if re.fullmatch(r"[A-Za-z](?:\s+[A-Za-z])+", text):
        return True
    if " " in text or not text.isalpha():
        return False
    if _WORD.fullmatch(text):
        return any(set(text) <= letters for letters in _VARIABLES) or (
            text.endswith("i") and len(text) == 2 and text[0] in "abcxy"
        )
    return True  # nRT


def _parse_quantity(text: str) -> Answer | None:
    if found := _CURRENCY.fullmatch(text):
        value = _parse(found["sign"] + found["value"])
        inner = value.value if isinstance(value, Quantity) else value
        same = not isinstance(value, Quantity) or value.unit in (parse_unit(found["unit"][-1]), parse_unit("each"))
        return Quantity(inner, parse_unit(found["unit"][-1])) if same and not isinstance(inner, Words) else None
    if (found := _PERCENT.fullmatch(text)) and not is_text(found["value"]) and not found["value"].endswith("%"):
        return Quantity(_parse(found["value"]), Unit("percent"))
    if found := re.fullmatch(r"(?P<value>.+?)\s*(?P<unit>\\\$|[$€£¥₹])", text):
        return Quantity(_parse(found["value"]), parse_unit(found["unit"][-1]))
    found = _TEXT_UNIT.fullmatch(text)
    if found and _is_value(found["value"]) and not re.search(r"\d\s|\d$", _tail(found)):
        if changes_number(found["unit"]):
            return None
        return Quantity(_parse(found["value"]), parse_unit(found["unit"]))
    if (found := _DEGREE.fullmatch(text)) and _is_value(found["value"]):
        return Quantity(
            _parse(found["value"]), Unit("degree" + (f" {found['scale'].lower()}" if found["scale"] else ""))
        )
    found = _BARE_UNIT.fullmatch(text)
    if found and _is_bare_unit(found["unit"], spaced=bool(found["space"])):
        return Quantity(_parse(found["value"]), parse_unit(found["unit"]))
    return None


def _tail(found: re.Match[str]) -> str:
    return re.sub(r"\^\s*\{?-?\d\}?", "", re.sub(r"[{}]", " ", re.sub(r"\\text", "", found["unit"])))


def _is_value(text: str) -> bool:
    """Return True if a text is a formula that a unit may follow."""
    return not is_text(text) and bool(re.search(r"\d|\\pi|\\sqrt|\\frac|^-?[A-Za-z]$|\)$", text))


def _is_bare_unit(unit: str, *, spaced: bool) -> bool:
    words = re.split(r"[ /]+", unit.strip())
    if len(words) > 3 or changes_number(unit):
        return False
    known = all(is_known(word, spaced=spaced) for word in words if word not in ("per", "square", "cubic", "sq"))
    return known or (all(len(word) > 2 and word.isalpha() for word in words) and not _is_product(unit.strip()))


MOST_DIGITS = 4000
"""Longest number to read; Python refuses to read an integer with more than 4,300 digits."""
_DECIMAL = re.compile(r"(?P<number>[-+]?\s*\d+(?:\.\d+)?)(?:[eE](?P<exponent>[-+]?\d{1,4}))?")
_FRACTION = re.compile(
    r"(?P<sign>[-+]?)\s*(?:(?P<whole>\d+)\s*)?\\frac\{\s*(?P<top>-?\d+)\s*\}\{\s*(?P<bottom>-?\d+)\s*\}"
)
_SLASH = re.compile(r"(?P<sign>[-+]?)\s*(?:(?P<whole>\d+)\s+)?(?P<top>\d+)\s*/\s*(?P<bottom>\d+)")


def parse_rational(latex: str) -> tuple[Fraction, bool] | None:
    """Return a plain number, and True if it has decimals; ``None`` for other formulas."""
    if len(latex) > MOST_DIGITS:
        return None
    if found := _DECIMAL.fullmatch(latex):
        digits = found["number"].replace(" ", "")
        return Fraction(digits) * Fraction(10) ** int(found["exponent"] or 0), "." in digits
    if found := _FRACTION.fullmatch(latex) or _SLASH.fullmatch(latex):
        bottom = int(found["bottom"])
        if bottom == 0:
            return None
        number = int(found["whole"] or 0) + Fraction(int(found["top"]), bottom)
        return (-number if found["sign"] == "-" else number), False
    return None

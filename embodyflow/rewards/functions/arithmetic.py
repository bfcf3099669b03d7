"""Values of calculations such as ``2 * (3 + 4)``, to find out if an equation is true."""

import ast
import operator
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

from embodyflow.rewards.functions.characters import PLAIN

LONGEST = 200
"""Characters of the longest calculation that is read; Python's parser gives up at deep nesting."""

_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_TIMES = re.compile(r"(?<=[\d)])\s*(?:[xX×·]|\\(?:times|cdot))\s*(?=[\d(.$€£¥₹\\])")
_DIVIDED = re.compile(r"÷|\\div(?![a-z])")
_BESIDE = re.compile(r"\\[,;:! ]|\\?[$€£¥₹]|(?<=\d),(?=\d{3}(?!\d))|\\(?:left|right)(?![a-z])")
_CALCULATION = re.compile(r"[\d.+\-*/() ]*\d[\d.+\-*/() ]*", re.ASCII)


def value_of(text: str) -> Fraction | None:
    """Return the value of numbers, signs, ``+ - * /`` and parentheses; ``None`` for other texts and divisions by 0.

    Currency signs and commas between thousands do not count.
    """
    if len(text) > LONGEST:
        return None
    plain = _BESIDE.sub("", _DIVIDED.sub("/", _TIMES.sub("*", text.translate(PLAIN)))).strip()
    if not _CALCULATION.fullmatch(plain) or "**" in plain or "//" in plain:
        return None
    try:
        return _computed(ast.parse(plain, mode="eval").body, plain)
    except (SyntaxError, ZeroDivisionError):
        return None


def is_rounded(value: Fraction, number: Decimal) -> bool:
    """Return True if a number is equal to a value, or is the value rounded to the number's last decimal."""
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)  # the number is finite
    return value == Fraction(number) or abs(value - Fraction(number)) < Fraction(10) ** min(exponent, 0)


def _computed(node: ast.expr, text: str) -> Fraction | None:
    match node:
        case ast.Constant(value=int() | float()):
            return Fraction(str(ast.get_source_segment(text, node)))
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            value = _computed(operand, text)
            return -value if value is not None and isinstance(node.op, ast.USub) else value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            one, other = _computed(left, text), _computed(right, text)
            return None if one is None or other is None else _OPERATIONS[type(op)](one, other)
        case _:
            return None

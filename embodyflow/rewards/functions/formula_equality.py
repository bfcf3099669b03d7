"""Equality of formulas: exact where it can be, else relative at high precision.

latex2sympy parses LaTeX. Numbers are compared as rationals or by the size of their difference relative to their own
size, so two tiny or huge numbers are not equal because they are tiny or huge. Formulas with variables are compared at
several points. math-verify compares sets, inequalities and what is left. SymPy may never finish with a formula.
"""

import logging
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.antlr_parser import PSParser
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import verify
from sympy.core.function import AppliedUndef
from sympy.core.relational import Equality, Relational

from embodyflow.rewards.functions.answer_syntax import parse_rational

# math-verify warns once per process that its time limit is off.
logging.getLogger("math_verify").setLevel(logging.ERROR)

# latex2sympy checks every atom for this rule before it checks for a percentage. Its parser for antlr 4.9.3 lacks the
# rule, so without this line it cannot parse percentages.
if not hasattr(PSParser.AtomContext, "FUNC_GAMMA"):
    PSParser.AtomContext.FUNC_GAMMA = lambda self: None

DECIMAL_TOLERANCE = 1.0001e-6
"""Relative difference between a decimal and a number that has no finite decimals, such as 0.333333 and 1/3."""
_ROUNDING = Fraction(1, 10**9)  # between two decimals, one of which has the digits of a float
_EXACT = 1e-60
_DIGITS = 80
_POINTS = tuple(
    tuple(Fraction(sign * (7 * place + 11 * row + 3), 5 * place + 3 * row + 4) for place in range(1, 13))
    for row, sign in ((1, 1), (2, 1), (3, 1), (5, 1), (4, -1), (6, -1))
)
_CAPITALS = re.compile(r"(?<![\\A-Za-z{])([A-Z]{2,})(?![A-Za-z])")
_VARIABLE_BASE = re.compile(r"(?<![\d.])(\d+)\s*_\s*\{?([A-Za-z])\}?")
_PRIMED = re.compile(r"(?<![\\A-Za-z{])([A-Za-z])('+)(?!\s*\()")
_UNREADABLE = re.compile(r"(?<![_^\d])\d+\s+\d|\d\.\d+\.\d|\d'\d|\d_\{?\d|\d\.(?!\d)")


class UndecidedError(ValueError):
    """Two formulas cannot be compared, because one of them cannot be parsed or computed."""


def equal_formulas(gold: str, answer: str) -> bool:
    """Return True if two formulas in normalized LaTeX are equal.

    Raises:
        UndecidedError: One of them cannot be parsed or computed.
    """
    one, other = parse_rational(gold), parse_rational(answer)
    if one is not None and other is not None:
        return _equal_rationals(one, other)
    expected, given = (
        parse_formula(latex) if number is None else sympy.Rational(number[0].numerator, number[0].denominator)
        for latex, number in ((gold, one), (answer, other))
    )  # LaTeX reads the e of 6e23 as Euler's number
    if expected is None or given is None:
        raise UndecidedError(f"cannot parse {gold if expected is None else answer}")
    return _equal(expected, given, has_decimals(gold) != has_decimals(answer), gold, answer)


def equal_when_rounded(one: str, other: str, *, roughly: bool) -> bool:
    """Return True if two numbers in normalized LaTeX differ by less than the last decimal of one that is written out.

    Args:
        one: Formula without variables.
        other: Formula without variables.
        roughly: Whether integers may be rounded too, and numbers may differ by 1 %.

    Raises:
        UndecidedError: One of them cannot be parsed or computed.
    """
    values = [_value_of(latex) for latex in (one, other)]
    gap, size = abs(values[0] - values[1]), max(map(abs, values))
    places = [place for latex in (one, other) if (place := _last_place(latex)) < 1 or roughly]
    return bool(gap < max(places, default=0)) or (roughly and bool(gap * 100 <= size))


def _value_of(latex: str) -> Any:
    parsed = parse_formula(latex) if (number := parse_rational(latex)) is None else sympy.Rational(number[0])
    try:
        value = None if parsed is None else parsed.doit().evalf(_DIGITS)
    except Exception as error:
        raise UndecidedError(f"cannot compute {latex}: {error}") from error
    if value is None or not (value.is_number and value.is_finite):
        raise UndecidedError(f"cannot compute {latex}")
    return value


def _last_place(latex: str) -> Fraction:
    """Return the value of 1 in the last place of a decimal or an integer; 0 for other formulas, which are exact."""
    found = re.fullmatch(r"[-+]?\s*\d+(?:\.(?P<decimals>\d+))?", latex)
    return Fraction(0) if found is None else Fraction(1, 10 ** len(found["decimals"] or ""))


def scaled(latex: str, factor: Fraction) -> str:
    """Return a formula times a factor."""
    number = parse_rational(latex)
    if number is not None:
        product = number[0] * factor
        return rf"\frac{{{product.numerator}}}{{{product.denominator}}}"
    return rf"\frac{{{factor.numerator}}}{{{factor.denominator}}} \cdot ({latex})"


def has_decimals(latex: str) -> bool:
    """Return True if a number in the formula has decimals."""
    return bool(re.search(r"\d\.\d", latex))


@lru_cache(maxsize=256)
def parse_formula(latex: str) -> Any:
    """Return the formula as a SymPy object with rationals instead of floats; ``None`` if it cannot be parsed."""
    latex = _readable_repetition(latex)
    if not latex or _UNREADABLE.search(latex.replace(r"\text", "")):
        return None
    latex = _VARIABLE_BASE.sub(r"\\text{\1base\2}", latex)  # the parser drops bases and primes
    latex = _PRIMED.sub(lambda found: rf"\text{{{found[1]}{'prime' * len(found[2])}}}", latex)
    latex = _CAPITALS.sub(r"\\text{\1}", latex)
    latex = re.sub(r"(\d+(?:\.\d+)?)\s*\^\\circ", r"(\\frac{\1\\pi}{180})", latex)
    try:
        parsed = latex2sympy(
            latex,
            is_real=True,
            convert_degrees=False,
            normalization_config=None,
            conversion_config=ConversionConfig(lowercase_symbols=False),
        )
        return _canonical(parsed)
    except Exception:  # the parser and SymPy raise whatever they like; the caller reports the formula as undecided
        return None


def _readable_repetition(latex: str) -> str:
    r"""Write ``0.1\overline{6}`` as a fraction."""

    def fraction(found: re.Match[str]) -> str:
        whole, start, again = found[1], found[2], found[3]
        nines = 10 ** len(again) - 1
        number = Fraction(int(whole + start + again) - int(whole + start), nines * 10 ** len(start))
        return rf"\frac{{{number.numerator}}}{{{number.denominator}}}"

    return re.sub(r"(\d+)\.(\d*)\\(?:overline|bar)\{?(\d+)\}?", fraction, latex)


def _canonical(parsed: Any) -> Any:
    """Return the object with rationals for floats and the imaginary unit for ``i``."""
    if isinstance(parsed, sympy.MatrixBase):
        return sympy.ImmutableMatrix(parsed.applyfunc(_canonical))
    if not isinstance(parsed, sympy.Basic):
        return None
    floats = {number: sympy.Rational(str(number)) for number in parsed.atoms(sympy.Float)}
    units = {symbol: sympy.I for symbol in parsed.free_symbols if symbol.name in ("i", r"\i", "imath")}
    functions = {
        call: sympy.Symbol(f"{call.func.__name__}({', '.join(map(str, call.args))})", real=True)
        for call in parsed.atoms(AppliedUndef)
    }
    return parsed.xreplace({**functions, **floats, **units})


def _equal_rationals(one: tuple[Fraction, bool], other: tuple[Fraction, bool]) -> bool:
    (a, a_decimal), (b, b_decimal) = one, other
    if a == b:
        return True
    size, difference = max(abs(a), abs(b)), abs(a - b)
    if (a_decimal and b_decimal) or (_is_decimal(a) and _is_decimal(b)):
        return (a_decimal or b_decimal) and difference <= size * _ROUNDING and _has_float_digits(a, b)
    return (a_decimal or b_decimal) and difference <= size * Fraction(DECIMAL_TOLERANCE)


def _is_decimal(number: Fraction) -> bool:
    """Return True if a number has finitely many decimals."""
    denominator = number.denominator
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    return denominator == 1


def _has_float_digits(*numbers: Fraction) -> bool:
    """Return True if a number has as many digits as a float, so that its last ones are rounding."""
    return any(len(str(abs(number.numerator))) >= 15 for number in numbers)


def _equal(expected: Any, given: Any, approximate: bool, gold: str, answer: str) -> bool:
    kinds = [
        "matrix" if isinstance(each, sympy.MatrixBase) else "expression" if isinstance(each, sympy.Expr) else "other"
        for each in (expected, given)
    ]
    if kinds == ["matrix", "matrix"]:
        return expected.shape == given.shape and all(
            _equal_expressions(one, other, approximate) for one, other in zip(expected, given, strict=True)
        )
    if kinds == ["expression", "expression"]:
        return _equal_expressions(expected, given, approximate)
    if isinstance(expected, Relational) and isinstance(given, Relational):
        return _equal_relations(expected, given)
    of_different_kinds = "matrix" in kinds or isinstance(given, Relational) != isinstance(expected, Relational)
    if of_different_kinds and not any(isinstance(each, sympy.Set) for each in (expected, given)):
        return False
    return _verified(expected, given)


def _verified(expected: Any, given: Any) -> bool:
    try:
        return bool(
            verify([expected], [given], allow_set_relation_comp=True, timeout_seconds=None, raise_on_error=True)
        )
    except Exception as error:
        raise UndecidedError(f"cannot compare: {error}") from error


def _equal_relations(expected: Relational, given: Relational) -> bool:
    """Return True if two equations or inequalities differ only by a factor."""
    sides = [
        each.lts - each.gts if not isinstance(each, Equality) else each.lhs - each.rhs for each in (expected, given)
    ]
    strict = [{"<": "<", ">": "<", "<=": "<=", ">=": "<="}.get(each.rel_op, each.rel_op) for each in (expected, given)]
    if strict[0] != strict[1]:
        return False
    values = [value for value in _values(sides) if all(part != 0 for part in value)]
    if len(values) < 2:
        return _equal_expressions(sides[0], sides[1], approximate=False)
    ratios = [one / other for one, other in values]
    same = all(_close(ratio, ratios[0], _EXACT) for ratio in ratios)
    return same and (strict[0] in ("==", "!=") or bool(sympy.re(ratios[0]) > 0))


def _equal_expressions(one: Any, other: Any, approximate: bool) -> bool:
    try:
        one, other = one.doit(), other.doit()
        if one == other:
            return True
        if any(not each.is_finite for each in (one, other) if each.is_finite is not None and not each.free_symbols):
            return False
        if not (one.free_symbols or other.free_symbols):
            return _equal_numbers(one, other, approximate)
    except UndecidedError:
        raise
    except Exception as error:
        raise UndecidedError(f"cannot compute {error}") from error
    tolerance = DECIMAL_TOLERANCE if approximate else _EXACT
    values = _values((one, other))
    if len(values) < 2:
        return _verified(one, other)
    return all(_close(first, second, tolerance) for first, second in values)


def _equal_numbers(one: Any, other: Any, approximate: bool) -> bool:
    if one.is_Rational and other.is_Rational:
        numbers = [Fraction(int(each.p), int(each.q)) for each in (one, other)]
        return _equal_rationals((numbers[0], approximate), (numbers[1], False))
    difference = one - other
    if difference.is_Rational:
        return bool(difference == 0) or (approximate and _close(one, other, DECIMAL_TOLERANCE))
    values = [each.evalf(_DIGITS) for each in (one, other)]
    if not all(each.is_number and each.is_finite for each in values):
        raise UndecidedError(f"cannot compute {one} or {other}")
    gap = abs(difference.evalf(_DIGITS))
    size = max(abs(each) for each in values)
    return bool(gap <= size * sympy.Float(DECIMAL_TOLERANCE if approximate else _EXACT, _DIGITS))


def _values(formulas: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return the values of two formulas at points where both are real, or complex if they contain the unit."""
    symbols = sorted(formulas[0].free_symbols | formulas[1].free_symbols, key=str)
    is_complex = any(each.has(sympy.I) for each in formulas)
    found: list[tuple[Any, Any]] = []
    complex_found: list[tuple[Any, Any]] = []
    for point in _POINTS:
        numbers = {
            symbol: sympy.Rational(point[place % 12].numerator, point[place % 12].denominator) + place // 12
            for place, symbol in enumerate(symbols)
        }
        try:
            values = tuple(each.subs(numbers).doit().evalf(_DIGITS) for each in formulas)
        except Exception:  # undefined at this point
            continue
        if all(value.is_number and value.is_finite for value in values):
            (found if is_complex or all(_is_real(value) for value in values) else complex_found).append(values)
    return found if len(found) > 1 else complex_found


def _is_real(value: Any) -> bool:
    return bool(abs(sympy.im(value)) <= abs(value) * sympy.Float(_EXACT, _DIGITS))


def _close(one: Any, other: Any, tolerance: float) -> bool:
    size = max(abs(sympy.N(one, _DIGITS)), abs(sympy.N(other, _DIGITS)))
    if size < sympy.Float(_EXACT, _DIGITS) and tolerance == _EXACT:  # as small as the noise of a formula that is 0
        return True
    return bool(abs(sympy.N(one - other, _DIGITS)) <= size * sympy.Float(tolerance, _DIGITS))

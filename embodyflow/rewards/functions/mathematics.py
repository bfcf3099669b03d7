r"""Equality of mathematical answers.

Two answers are equal if their normalized text is equal, whatever they mean. Otherwise both are split into words, clock
times, numbers in a base, quantities with units, lists, equations and formulas
(:mod:`~embodyflow.rewards.functions.answer_syntax`), and formulas are compared by SymPy
(:mod:`~embodyflow.rewards.functions.formula_equality`).

Conventions:

- A unit on both sides counts: 5 cm is not 5 m, and 100 cm is 1 m. A unit on one side only is ignored, as in
  math-verify, because a question often names it. So is a name on one side only: ``x = 5`` is ``5``.
- An equation between constants counts as its last side, if it is true: ``2 + 3 = 5`` is ``5``, ``6 = 5`` is no answer.
  A decimal may be rounded: ``1/3 = 0.33`` is ``0.33``.
- ``50%`` is both ``50`` and ``0.5``; ``50%`` and ``40%`` differ.
- A bare list may be in any order, but counts repetitions: ``1,1,2`` is not ``1,2``. Braces are a set, parentheses are
  in order.
- A base belongs to the answer: ``101_2`` is neither ``101_3`` nor ``101`` nor ``5``.
- Words may differ in case, not in the order of letters: ``BA`` is not ``AB``.
- A decimal with six or more digits may stand for a number without finite decimals: ``0.333333`` is ``1/3``.

SymPy may never finish simplifying a formula, so run these functions in
:class:`~embodyflow.rewards.managers.pool.ParallelRewardManager`, whose deadline also stops native code. The time limit
of math-verify is off: it is an alarm signal, which works only in the main thread and only between instructions of the
interpreter.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from embodyflow.rewards.functions.answer_syntax import (
    MOST_DIGITS,
    Answer,
    Assignment,
    Based,
    Chain,
    Clock,
    Formula,
    Items,
    Quantity,
    Ratio,
    Words,
    parse_answer,
    parse_list,
)
from embodyflow.rewards.functions.final_answers import extract_boxed, final_text, without_lead_in
from embodyflow.rewards.functions.formula_equality import (
    UndecidedError,
    equal_formulas,
    equal_when_rounded,
    scaled,
)
from embodyflow.rewards.functions.latex_text import key_of, normalize
from embodyflow.rewards.functions.math_golds import parse_golds
from embodyflow.rewards.functions.units import Unit
from embodyflow.rewards.interface import Sample, Score, outcome

_RELATION = re.compile(r"[<>]|\\(?:le|ge|lt|gt|ne|cup|cap|setminus|mathbb|mid)(?![a-z])")

__all__ = ["equal_answers", "extract_boxed", "verify_boxed"]


def verify_boxed(sample: Sample) -> Score:
    r"""Compare the content of the response's last ``\boxed{}``, after any thinking, with the ground truth.

    The part ``undecided`` counts answers that could not be compared; they are not correct.

    Raises:
        ValueError: The ground truth is no text, number or list of them, is empty, or is prose.
    """
    golds = parse_golds(sample.ground_truth)
    answer = extract_boxed(final_text(sample.response))
    if answer is None:
        return outcome(False, answered=0.0, undecided=0.0)
    answer = without_lead_in(answer)
    undecided = False
    for gold in golds:
        try:
            if _equal_or_fault(gold, answer):
                return outcome(True, answered=1.0, undecided=0.0)
        except UndecidedError:
            undecided = True
    return outcome(False, answered=1.0, undecided=undecided)


def _equal_or_fault(gold: str, answer: str) -> bool:
    """Compare an answer that a model wrote, which may be any text and must not end a run.

    Raises:
        UndecidedError: The answer is longer than any that is read, or the comparison raised.
    """
    if len(answer) > MOST_DIGITS:
        raise UndecidedError(f"the answer has {len(answer)} characters; at most {MOST_DIGITS} are read")
    try:
        return equal_answers(gold, answer)
    except UndecidedError:
        raise
    except Exception as error:  # golds are graded against themselves before training, so the answer is the cause
        raise UndecidedError(f"cannot compare: {type(error).__name__}: {error}") from error


def equal_answers(gold: str, answer: str) -> bool:
    """Return True if an answer equals a gold.

    Raises:
        UndecidedError: SymPy cannot parse or compute one of them.
    """
    expected, given = normalize(gold), normalize(answer)
    if key_of(expected) and key_of(expected) == key_of(given):
        return True
    if not key_of(given):
        return False
    one, other = parse_answer(gold), parse_answer(answer)
    if isinstance(one, Items) and (listed := parse_list(answer)):
        other = listed
    elif isinstance(other, Items) and (listed := parse_list(gold)):
        one = listed
    return _equal(one, other)


def _equal(gold: Answer, answer: Answer) -> bool:
    if _compares_relations(gold, answer):
        return equal_formulas(_latex_of(gold), _latex_of(answer))
    match gold, answer:
        case Chain(), _:
            return _holds(gold) and _equal(gold.value, answer)
        case _, Chain():
            return _holds(answer) and _equal(gold, answer.value)
        case Assignment(), Assignment():
            if gold.name == answer.name:
                return _equal(gold.value, answer.value)
            return _has_variables(gold.value) and equal_formulas(gold.latex, answer.latex)
        case Assignment(), _:
            return _equal(gold.value, answer)
        case _, Assignment():
            return _equal(gold, answer.value)
        case Items(), _ if len(gold.items) == 1 and not isinstance(answer, Items):
            return _equal(gold.items[0], answer)
        case _, Items() if len(answer.items) == 1 and not isinstance(gold, Items):
            return _equal(gold, answer.items[0])
        case Quantity(), Quantity():
            return _equal_quantities(gold, answer)
        case Quantity(), Items() | Formula() | Ratio() | Based():
            return _equal_without_unit(gold, answer)
        case Items() | Formula() | Ratio() | Based(), Quantity():
            return _equal_without_unit(answer, gold)
        case Items(), Items():
            return _equal_items(gold, answer)
        case Clock(), Clock():
            return _equal_clocks(gold, answer)
        case Based(), Based():
            return gold == answer
        case Formula(), Based():
            return _equal(gold, Formula(str(int(answer.digits, answer.base))))
        case Ratio() | Clock(), Ratio() | Clock():
            return _equal_ratios(_as_ratio(gold), _as_ratio(answer))
        case (Ratio(parts=(Formula(), Formula())), Formula()) | (Formula(), Ratio(parts=(Formula(), Formula()))):
            return equal_formulas(*(_as_quotient(each) for each in (gold, answer)))
        case Words(), Words():
            return gold.text == answer.text
        case Formula(), Formula():
            return equal_formulas(gold.latex, answer.latex)
    return _equal_clock_and_number(gold, answer)


def _compares_relations(gold: Answer, answer: Answer) -> bool:
    """Return True if one side is an equation and the other another equation, or a list and an inequality or union."""
    for one, other in ((gold, answer), (answer, gold)):
        if isinstance(one, Formula) and isinstance(other, Assignment) and "=" in one.latex:
            return True
        if isinstance(one, Formula) and isinstance(other, Items) and _RELATION.search(one.latex):
            return True
    return False


def _holds(chain: Chain) -> bool:
    """Return True unless two constants that the chain says are equal differ."""
    return all(_may_be_equal(one, other, chain.is_rounded) for one, other in pairwise(chain.constants))


def _may_be_equal(one: Answer, other: Answer, is_rounded: bool) -> bool:
    try:
        if _equal(one, other):
            return True
        if isinstance(one, Formula) and isinstance(other, Formula):
            return equal_when_rounded(one.latex, other.latex, roughly=is_rounded)
        for share, number in ((one, other), (other, one)):
            match share, number:
                case Quantity(value=Formula(latex=value), unit=unit), Formula() if unit == Unit("percent"):
                    return equal_when_rounded(value, scaled(number.latex, Fraction(100)), roughly=True)
    except UndecidedError:  # not known to be false
        return True
    return False


def _latex_of(answer: Answer) -> str:
    assert isinstance(answer, Formula | Assignment | Items)
    return answer.latex


def _has_variables(answer: Answer) -> bool:
    """Return True if an answer is a formula with letters, so its equation may be solved for another name."""
    return isinstance(answer, Formula) and bool(re.search(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", answer.latex)))


def _equal_quantities(gold: Quantity, answer: Quantity) -> bool:
    factor = answer.unit.factor_to(gold.unit)
    if factor is None:
        return False
    if factor != 1 and isinstance(answer.value, Formula):
        return _equal(gold.value, Formula(scaled(answer.value.latex, factor)))
    return factor == 1 and _equal(gold.value, answer.value)


def _equal_without_unit(quantity: Quantity, other: Answer) -> bool:
    """Return True if a quantity equals an answer without a unit."""
    if _equal(quantity.value, other):
        return True
    if not isinstance(quantity.value, Formula):
        return False
    if quantity.unit == Unit("percent"):
        return _equal(Formula(scaled(quantity.value.latex, Fraction(1, 100))), other)
    if quantity.unit == Unit("degree") and isinstance(other, Formula) and r"\pi" in other.latex:
        return _equal(Formula(rf"\frac{{\pi}}{{180}} \cdot ({quantity.value.latex})"), other)
    return False


def _equal_items(gold: Items, answer: Items) -> bool:
    one, other = gold.brackets, answer.brackets
    if one == other == "{}":
        return _all_in(gold.items, answer.items) and _all_in(answer.items, gold.items)
    if (one and other and one != other) or ({one, other} & {"[]", "[)", "(]"} and one != other):
        return False
    if len(gold.items) != len(answer.items):
        return False
    if "()" in (one, other) or one == other == "[]" or one in ("[)", "(]") or _names_one_side(gold, answer):
        return all(_equal(left, right) for left, right in zip(gold.items, answer.items, strict=True))
    return _equal_in_any_order(gold.items, answer.items)


def _names_one_side(gold: Items, answer: Items) -> bool:
    """Return True if only one list names its items, differently, so that the order decides."""
    names = [[item.name for item in each.items if isinstance(item, Assignment)] for each in (gold, answer)]
    return any(len(set(one)) > 1 and not other for one, other in (names, names[::-1]))


def _equal_in_any_order(golds: Sequence[Answer], answers: Sequence[Answer]) -> bool:
    left = list(answers)
    for gold in golds:
        found = next((index for index, answer in enumerate(left) if _equal_or_undecided(gold, answer)), None)
        if found is None:
            return False
        del left[found]
    return True


def _all_in(items: Sequence[Answer], others: Sequence[Answer]) -> bool:
    return all(any(_equal_or_undecided(item, other) for other in others) for item in items)


def _equal_or_undecided(gold: Answer, answer: Answer) -> bool:
    """Compare items; one that cannot be compared equals only itself."""
    try:
        return gold == answer or _equal(gold, answer)
    except UndecidedError:
        return False


def _equal_clocks(gold: Clock, answer: Clock) -> bool:
    if len(gold.fields) != len(answer.fields) and 1 not in (len(gold.fields), len(answer.fields)):
        return False
    if gold.half == answer.half or not (gold.half and answer.half):
        one, other = (tuple(each.fields) + (0,) * (3 - len(each.fields)) for each in (gold, answer))
        if one == other:
            return True
    return bool(gold.half) != bool(answer.half) and _hours(gold) == _hours(answer)


def _hours(clock: Clock) -> tuple[int, ...]:
    """Return the fields of a time on the 24-hour clock."""
    hour, *rest = clock.fields
    if clock.half:
        hour = hour % 12 + (12 if clock.half == "pm" else 0)
    return (hour, *rest)


def _equal_clock_and_number(gold: Answer, answer: Answer) -> bool:
    """Compare a full hour such as ``10 p.m.`` with ``10``; all other pairs of kinds differ."""
    for clock, other in ((gold, answer), (answer, gold)):
        if isinstance(clock, Clock) and len(clock.fields) == 1 and isinstance(other, Formula):
            return equal_formulas(str(clock.fields[0]), other.latex)
    return False


def _as_ratio(answer: Ratio | Clock) -> Ratio:
    return answer if isinstance(answer, Ratio) else Ratio(tuple(Formula(str(field)) for field in answer.fields))


def _as_quotient(answer: Answer) -> str:
    if isinstance(answer, Ratio):
        one, other = (part.latex for part in answer.parts if isinstance(part, Formula))
        return rf"\frac{{{one}}}{{{other}}}"
    assert isinstance(answer, Formula)
    return answer.latex


def _equal_ratios(gold: Ratio, answer: Ratio) -> bool:
    """Return True if all parts have the same proportion."""
    parts = [[part.latex for part in each.parts if isinstance(part, Formula)] for each in (gold, answer)]
    if len(parts[0]) != len(parts[1]):
        return False
    (one, *ones), (other, *others) = parts
    return all(
        equal_formulas(rf"({one}) \cdot ({right})", rf"({other}) \cdot ({left})")
        for left, right in zip(ones, others, strict=True)
    )

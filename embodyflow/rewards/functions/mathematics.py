"""Equality of mathematical answers, according to math-verify, which parses LaTeX and compares with SymPy.

SymPy may never finish simplifying a formula, so run these functions in
:class:`~embodyflow.rewards.managers.pool.ParallelRewardManager`, whose deadline also stops native code. The time limit
of math-verify is off: it is an alarm signal, which works only in the main thread and only between instructions of the
interpreter.
"""

import logging
import math
import re
from typing import Any

from latex2sympy2_extended.antlr_parser import PSParser
from math_verify import LatexExtractionConfig, parse, verify

from embodyflow.rewards.interface import Sample, Score, outcome

# math-verify warns once per process that its time limit is off.
logging.getLogger("math_verify").setLevel(logging.ERROR)

# latex2sympy checks every atom for this rule before it checks for a percentage. Its parser for antlr 4.9.3 lacks the
# rule, so without this line it cannot parse percentages.
if not hasattr(PSParser.AtomContext, "FUNC_GAMMA"):
    PSParser.AtomContext.FUNC_GAMMA = lambda self: None

BOX = r"\boxed"
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace does not count
_LATEX = (LatexExtractionConfig(boxed_match_priority=0),)


def verify_boxed(sample: Sample) -> Score:
    r"""Compare the content of the response's last ``\boxed{}`` with the ground truth.

    The part ``undecided`` counts answers that SymPy could not compare; they are not correct.

    Raises:
        ValueError: The ground truth cannot be parsed.
    """
    truth = str(sample.ground_truth)
    boxed_truth = extract_boxed(truth)
    expected = _parse_latex(truth if boxed_truth is None else boxed_truth)
    if not expected:
        raise ValueError(f"ground_truth={truth!r} cannot be parsed as LaTeX")
    answer = extract_boxed(sample.response)
    if answer is None:
        return outcome(False, answered=0.0, undecided=0.0)
    try:
        given = _parse_latex(answer)
        equal = verify(expected, given, timeout_seconds=None, raise_on_error=True)
        correct = equal and not _differ_when_small(expected[0], given[0])
    except Exception:  # the response contains a formula that SymPy cannot compute
        return outcome(False, answered=1.0, undecided=1.0)
    return outcome(correct, answered=1.0, undecided=0.0)


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


def _differ_when_small(one: Any, other: Any) -> bool:
    """Return True if two different numbers are too small for math-verify, which rounds to six decimals."""
    if one == other or not all(getattr(each, "is_comparable", False) for each in (one, other)):
        return False
    values = [each.evalf() for each in (one, other)]
    # A result that should be 0 may be 1e-125.
    return max(map(abs, values)) < 1e-5 and not math.isclose(*values, rel_tol=1e-6, abs_tol=1e-100)


def _parse_latex(latex: str) -> list[Any]:
    """Return the results of math-verify's parser; the last is the text itself, and an empty formula has no results."""
    return parse(f"{BOX}{{{latex}}}", extraction_config=_LATEX, parsing_timeout=None)

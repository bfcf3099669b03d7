"""Equality of mathematical answers by math-verify, which reads LaTeX and compares with SymPy.

Simplifying can take for ever: run these in :class:`embodyflow.rewards.managers.pool.ParallelRewardManager`, whose deadline ends
native code too. math-verify's own limit is an alarm signal, which only works in a process's main thread and only
between instructions of the interpreter, so it is off here.
"""

import logging
import math
import re
from typing import Any

from latex2sympy2_extended.antlr_parser import PSParser
from math_verify import LatexExtractionConfig, parse, verify

from embodyflow.rewards.reward_interface import Sample, Score, outcome

# It warns once in every process that its time limit is off.
logging.getLogger("math_verify").setLevel(logging.ERROR)

# latex2sympy asks every atom for this rule before it asks for a percentage, and its parser for antlr 4.9.3 lacks it: no
# percentage could be read.
if not hasattr(PSParser.AtomContext, "FUNC_GAMMA"):
    PSParser.AtomContext.FUNC_GAMMA = lambda self: None

BOX = r"\boxed"
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace is none
_LATEX = (LatexExtractionConfig(boxed_match_priority=0),)


def verify_boxed(sample: Sample) -> Score:
    r"""Compare what the response's last ``\boxed{}`` holds with the ground truth.

    The part ``undecided`` counts answers that could not be compared; they are not correct.

    Raises:
        ValueError: the ground truth cannot be read.
    """
    truth = str(sample.ground_truth)
    boxed_truth = boxed(truth)
    wanted = _read(truth if boxed_truth is None else boxed_truth)
    if not wanted:
        raise ValueError(f"ground_truth={truth!r} cannot be read as LaTeX")
    answer = boxed(sample.response)
    if answer is None:
        return outcome(False, answered=0.0, undecided=0.0)
    try:
        given = _read(answer)
        correct = verify(wanted, given, timeout_seconds=None, raise_on_error=True) and not _apart(wanted[0], given[0])
    except Exception:  # a formula that SymPy cannot compute with is the response's doing
        return outcome(False, answered=1.0, undecided=1.0)
    return outcome(correct, answered=1.0, undecided=0.0)


def boxed(text: str) -> str | None:
    r"""Return what the last ``\boxed{…}`` of a text holds, braces within it balanced; ``None`` without one."""
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


def _apart(one: Any, other: Any) -> bool:
    """Return whether two numbers differ that are too small for math-verify to tell: it rounds to six decimals."""
    if one == other or not all(getattr(each, "is_comparable", False) for each in (one, other)):
        return False
    values = [each.evalf() for each in (one, other)]
    # What should be 0 may come out as 1e-125.
    return max(map(abs, values)) < 1e-5 and not math.isclose(*values, rel_tol=1e-6, abs_tol=1e-100)


def _read(latex: str) -> list[Any]:
    """Return what math-verify makes of a formula, its text last where it is none; empty where there is nothing."""
    return parse(f"{BOX}{{{latex}}}", extraction_config=_LATEX, parsing_timeout=None)

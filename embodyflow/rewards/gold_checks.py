"""Grading of golds against themselves, before training.

A gold that does not score full marks as a response, or whose altered copy does, would train on wrong rewards.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any

from embodyflow.rewards.functions.answer_syntax import parse_rational
from embodyflow.rewards.functions.final_answers import GOLD_MARKER, golds_of
from embodyflow.rewards.functions.function_registry import build_reward_function
from embodyflow.rewards.interface import RewardManager, Sample
from embodyflow.rewards.managers.inline import NaiveRewardManager
from embodyflow.rewards.managers.pool import ParallelRewardManager
from embodyflow.rewards.reward_config import (
    BySourceConfig,
    ExactMatchConfig,
    FunctionConfig,
    GSM8KConfig,
    MathConfig,
    ParallelConfig,
    RegexConfig,
    RewardConfig,
)

MOST_WORKERS = 4
TIME_LIMIT = 30.0
"""Seconds for one trial. A slower trial counts as decided, so that all ranks come to the same result."""

Parser = Callable[[Any, str], Sequence[Any]]


def why_unchecked(config: RewardConfig) -> str | None:
    """Return why golds cannot be graded against themselves; ``None`` if they can."""
    if config.function is None:
        return f"reward.manager.name={config.manager.name} scores responses without golds"
    if isinstance(config.function, (ExactMatchConfig, GSM8KConfig, MathConfig)):
        return None
    if isinstance(config.function, BySourceConfig):
        leaves = [config.model_copy(update={"function": each}) for each in config.functions.values()]
        reasons = [why_unchecked(leaf) for leaf in leaves]
        return None if None in reasons else reasons[0]
    if isinstance(config.function, RegexConfig):
        return "reward.function.name=regex does not say what a response with a gold looks like"
    return f"reward.function.name={config.function.name} does not compare responses with a gold text"


def find_ungradable(
    config: RewardConfig, ground_truths: Sequence[Any], column: str, sample: Sequence[int] | None = None
) -> dict[int, str]:
    """Return the indices of ground truths that cannot be graded, with the reasons, in order.

    Each must be a text, a number or a list of them, contain an answer, score full marks against itself and 0 against
    an altered copy.

    Args:
        config: Reward; if :func:`why_unchecked` refuses its function, only the kind of the ground truths is checked.
        ground_truths: Ground truths.
        column: Name of their column, for the reasons.
        sample: Indices of the ground truths to grade; ``None`` for all. The kind of all of them is checked.
    """
    graded = range(len(ground_truths)) if sample is None else sample
    written = "" if config.function is None else config.function.model_dump_json()
    key = (written, column, tuple(map(repr, ground_truths)), tuple(graded))
    return dict(_problems(_Golds(key, config, ground_truths, graded)))


@dataclass(frozen=True)
class _Golds:
    """Ground truths to grade; those with the same ``key`` have the same problems."""

    key: tuple[str, str, tuple[str, ...], tuple[int, ...]]
    config: RewardConfig = field(compare=False)
    ground_truths: Sequence[Any] = field(compare=False)
    graded: Sequence[int] = field(compare=False)


@lru_cache(maxsize=16)  # a process that checks many configurations, such as a sweep's, meets the same golds again
def _problems(asked: _Golds) -> tuple[tuple[int, str], ...]:
    config, column, ground_truths = asked.config, asked.key[1], asked.ground_truths
    problems = {
        index: reason for index, truth in enumerate(ground_truths) if (reason := _reason(golds_of, truth, column))
    }
    if why_unchecked(config) is not None:
        return tuple(problems.items())
    assert config.function is not None  # checked by why_unchecked
    parser = _parser(config.function)
    golds: list[_Gold] = []
    for index in asked.graded:
        if index in problems:
            continue
        try:
            golds += [_Gold(index, gold) for gold in parser(ground_truths[index], column)]
        except ValueError as error:
            problems[index] = str(error)
    for index, fault in _faults(config.function, golds):
        problems.setdefault(index, f"{column}={_abbreviate(ground_truths[index])} {fault}")
    return tuple(sorted(problems.items()))


@dataclass(frozen=True)
class _Gold:
    """One gold of the ground truth ``index``."""

    index: int
    gold: Any


def _faults(function: FunctionConfig, golds: Sequence[_Gold]) -> list[tuple[int, str]]:
    """Return the indices of golds that do not score as they must, with what is wrong with each."""
    quick = [gold for gold in golds if _is_quick(function, gold.gold)]
    slow = [gold for gold in golds if not _is_quick(function, gold.gold)]
    faults: list[tuple[int, str]] = []
    for some, manager in ((quick, _build_manager(function, quick=True)), (slow, _build_manager(function, quick=False))):
        try:
            faults += _grade(function, some, manager)
        finally:
            manager.close()
    return faults


def _grade(function: FunctionConfig, golds: Sequence[_Gold], manager: RewardManager) -> list[tuple[int, str]]:
    """Return the golds that do not match themselves, and those that match every altered copy or none decidedly."""
    own = manager.score([_sample(function, gold.gold, gold.gold) for gold in golds])
    faults = [
        (gold.index, "does not match itself") for gold, score in zip(golds, own, strict=True) if not score.correct
    ]
    left = [gold for gold, score in zip(golds, own, strict=True) if score.correct]
    altered = [_altered(function, gold.gold) for gold in left]
    for round_ in range(max(map(len, altered), default=0)):
        tried = [place for place, copies in enumerate(altered) if round_ < len(copies)]
        scores = manager.score([_sample(function, altered[place][round_], left[place].gold) for place in tried])
        for place, score in zip(tried, scores, strict=True):
            if not score.correct and not score.parts.get("undecided"):
                altered[place] = []
            elif round_ == len(altered[place]) - 1:
                fault = f"also matches {altered[place][-1]!r}" if score.correct else "can be compared only as text"
                faults.append((left[place].index, fault))
    return faults


def _is_quick(function: FunctionConfig, gold: Any) -> bool:
    """Return True if a gold and its altered copies are graded without SymPy."""
    return not isinstance(function, MathConfig) or parse_rational(gold) is not None


def _build_manager(function: FunctionConfig, *, quick: bool) -> RewardManager:
    """Build a manager; formulas, which SymPy may never finish, need one with a deadline."""
    if quick:
        return NaiveRewardManager(build_reward_function(function))
    workers = min(MOST_WORKERS, os.cpu_count() or 1)
    pool = ParallelConfig(num_workers=workers, time_limit=TIME_LIMIT, retries=0, overdue="incorrect")
    return ParallelRewardManager(function, pool)


def _parser(function: FunctionConfig) -> Parser:
    """Return the function that reads the golds of a ground truth."""
    from embodyflow.rewards.functions import answer_matching, math_golds

    match function:
        case MathConfig():
            return math_golds.parse_golds
        case ExactMatchConfig(marker=marker):
            return lambda truth, column: answer_matching.text_golds(truth, marker, column)
        case _:
            return answer_matching.number_golds


def _reason(parse: Parser, truth: Any, column: str) -> str | None:
    try:
        parse(truth, column)
    except ValueError as error:
        return str(error)
    return None


def _altered(function: FunctionConfig, gold: Any) -> list[Any]:
    """Return copies of a gold, at least one of which must be graded as wrong."""
    match function:
        case MathConfig():
            return alter_answer(gold)
        case ExactMatchConfig():
            return [f"{gold.rstrip(' .')}0x"]
        case _:
            return [f"{-gold or Decimal(1):f}"]


def alter_answer(gold: str) -> list[str]:
    r"""Return answers that differ from a mathematical gold: other digits, another factor, another number.

    One of them may be right after all: ``\binom{5}{3}`` is ``\binom{5}{2}``.
    """
    digits = [found.start() for found in re.finditer(r"[0-9]", gold)]
    places = dict.fromkeys(digits[-1:] + digits[:1])
    copies = [f"{gold[:at]}{_other_digit(gold[at])}{gold[at + 1 :]}" for at in places]
    return [*copies, f"7{gold}", "0", "1"] if not digits else [*copies, "0", "1"]


def _other_digit(digit: str) -> str:
    return "8" if digit == "9" else str(int(digit) + 1)


def _sample(function: FunctionConfig, answer: Any, gold: Any) -> Sample:
    """Return a response with an answer, as the reward function expects it."""
    match function:
        case MathConfig():
            response = rf"\boxed{{{answer}}}"
        case ExactMatchConfig(marker=marker):
            response = f"{marker or ''}{answer}"
        case _:
            gold, answer = (f"{each:f}" if isinstance(each, Decimal) else each for each in (gold, answer))
            response = f"{GOLD_MARKER} {answer}"
    return Sample(0, "", response, gold, "golds", 1, True)


def _abbreviate(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

"""Golds graded against themselves."""

import json
import os
import random
from pathlib import Path

import pytest

from embodyflow.rewards.functions.mathematics import verify_boxed
from embodyflow.rewards.gold_checks import alter_answer, find_ungradable, why_unchecked
from embodyflow.rewards.interface import Sample
from embodyflow.rewards.reward_config import RewardConfig

SHARED = Path(os.environ.get("EMBODYFLOW_SHARED", Path(__file__).parents[3].parent / "shared"))
GSM8K = SHARED / "data" / "gsm8k"
MATH = RewardConfig(function={"name": "math"}, manager={"name": "parallel"})
EXACT = RewardConfig(function={"name": "exact_match"})
NUMBER = RewardConfig(function={"name": "gsm8k"})


@pytest.fixture(scope="module")
def gsm8k():
    if not GSM8K.is_dir():
        pytest.skip(f"needs {GSM8K} (EMBODYFLOW_SHARED names the folder with data/gsm8k)")
    lines = [line for split in ("train", "test") for line in (GSM8K / f"{split}.jsonl").read_text().splitlines()]
    answers = [json.loads(line)["answer"] for line in lines]
    assert len(answers) == 8792
    return answers


@pytest.mark.parametrize("config", [NUMBER, EXACT, MATH], ids=lambda config: config.function.name)
def test_all_golds_of_gsm8k_can_be_graded(config, gsm8k):
    assert find_ungradable(config, gsm8k, "answer") == {}


def math_like_golds(number):
    """Return golds as in the dataset MATH: fractions, roots, points, intervals, matrices, words, …"""
    rng = random.Random(0)
    n = lambda low=1, high=99: rng.randint(low, high)  # noqa: E731
    kinds = (
        lambda: f"{n()}",
        lambda: f"-{n()}.{n()}",
        lambda: rf"\frac{{{n()}}}{{{n(2)}}}",
        lambda: rf"\dfrac{n(1, 9)}{n(2, 9)}",
        lambda: rf"{n()}\sqrt{{{n(2)}}}",
        lambda: rf"\frac{{{n()} + \sqrt{{{n(2)}}}}}{{{n(2)}}}",
        lambda: rf"\left( {n()}, \frac{{{n()}\pi}}{{{n(2, 9)}}} \right)",
        lambda: f"{n()}, {n()}, {n()}",
        lambda: rf"[{-n()}, {n()}) \cup ({n(100, 200)}, \infty)",
        lambda: rf"\begin{{pmatrix}} {n()} & {n()} \\ {n()} & {n()} \end{{pmatrix}}",
        lambda: f"x^3 + {n()}x - {n()}",
        lambda: f"y = {n()}x + {n()}",
        lambda: f"{n(1, 4)}{n(0, 4)}{n(0, 4)}_{n(5, 9)}",
        lambda: rf"{n()}\text{{ cm}}^2",
        lambda: rf"{n()}^\circ",
        lambda: rf"\${n()}.{n(10)}",
        lambda: rf"{n()}\%",
        lambda: rf"\text{{{rng.choice(['Evelyn', 'Tuesday', 'even', 'no solution', '(B)', 'neither'])}}}",
        lambda: rf"{n()}{{,}}{n(100, 999)}",
        lambda: rf"{n()}\,{n(100, 999)}\,{n(100, 999)}",
        lambda: f"{n(1, 12)}:{n(10, 59)}",
        lambda: f"{n()} - {n()}i",
        lambda: rf"{n()}\pi",
        lambda: rf"\frac{{{n()}!}}{{{n(100, 300)}!}}",
        lambda: f"{n(2, 9)}^{{{n(20)}}}",
        lambda: rf"x \ge {n()}",
        lambda: rf"\{{{n()}, {n()}, {n()}\}}",
        lambda: rf"{n(1, 9)}\frac{{{n(1, 4)}}}{{{n(5, 9)}}}",
        lambda: rng.choice(["AB", "CD", "C", "x", r"\pi", "PQR", "k", r"\emptyset"]),
    )
    return [kinds[index % len(kinds)]() for index in range(number)]


def test_200_golds_as_in_math_can_be_graded_and_altered_ones_are_wrong():
    golds = math_like_golds(200)
    assert find_ungradable(MATH, golds, "answer") == {}
    for gold in golds:
        score = verify_boxed(Sample(1, "?", rf"\boxed{{{alter_answer(gold)[0]}}}", gold, "math", 3, True))
        assert not score.correct, gold


@pytest.mark.parametrize(
    ("config", "truth", "reason"),
    [
        (MATH, {"style": "rule", "ground_truth": "72"}, "here the nested column reward_model.ground_truth"),
        (EXACT, {"ground_truth": "72"}, "here the nested column reward_model.ground_truth"),
        (NUMBER, None, "reward_model is None"),
        (MATH, "There are 34 apples.", "is prose"),
        (MATH, r"\frac{1", "does not match itself"),
        (MATH, r"\det A", "can be compared only as text"),
        (MATH, "", "cannot be parsed"),
        (MATH, "119_7", "can be compared only as text"),  # 9 is no digit of base 7
        (NUMBER, "forty-two", "is not a number"),
        (NUMBER, "12:30", "is not a number"),
        (EXACT, "#### ", "has no answer"),
        (EXACT, "<think>5", "does not match itself"),
    ],
)
def test_a_gold_that_cannot_be_graded_has_a_reason(config, truth, reason):
    problems = find_ungradable(config, ["5", truth, "7"], "reward_model")
    assert list(problems) == [1] and reason in problems[1]


def test_only_a_sample_is_graded_and_all_kinds_are_checked():
    assert list(find_ungradable(NUMBER, ["five", "6", None], "answer", sample=[1])) == [2]


def test_lists_and_numbers_are_golds():
    assert find_ungradable(MATH, [["1/2", "0.5"], 5, 5.0, 0.25], "answer") == {}
    assert find_ungradable(NUMBER, [["5", 6], 5, 5.0, 1e-7, 10**30], "answer") == {}
    assert find_ungradable(EXACT, [["Paris", "paris"], 5, "The answer is 34."], "answer") == {}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"function": {"name": "code"}}, "reward.function.name=code does not compare"),
        ({"function": {"name": "custom", "function": "math:sqrt"}}, "reward.function.name=custom does not compare"),
        (
            {"function": {"name": "regex", "pattern": "(.)"}, "manager": {"name": "parallel"}},
            "reward.function.name=regex does not say",
        ),
        ({"manager": {"name": "model", "path": "x"}}, "reward.manager.name=model scores responses without golds"),
    ],
)
def test_other_rewards_say_why_their_golds_are_not_checked(values, reason):
    assert why_unchecked(RewardConfig(**values)).startswith(reason)

"""Mathematical equality of boxed answers."""

import psutil
import pytest

from embodyflow.rewards.functions.function_registry import build_reward_function
from embodyflow.rewards.functions.mathematics import extract_boxed
from embodyflow.rewards.interface import Sample
from embodyflow.rewards.reward_config import MathConfig, RewardConfig
from embodyflow.rewards.reward_registry import build_reward_manager

EQUAL = [
    (r"\frac{1}{2}", "0.5"),
    ("1/2", r"\frac12"),
    ("1,000", "1000"),
    (r"2\sqrt{2}", r"\sqrt{8}"),
    ("(x+1)^2", "x^2+2x+1"),
    (r"\{1, 2\}", r"\{2, 1\}"),
    (r"x \in [0, 1)", "[0,1)"),
    (r"\dfrac{\pi}{4}", r"\frac{\pi}{4}"),
    (r"\text{Evelyn}", r"\text{Evelyn}"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    ("x = 5", "5"),
    (r"50\%", "50"),
    (r"50\%", "0.5"),
    (r"50\%", r"50\%"),
    (r"12.5\%", r"12.50\%"),
    (r"5\%", "0.05"),
    (r"1.60\times10^{-19}", r"1.6\times10^{-19}"),
    (r"10^{-7}", "0.0000001"),
    (r"\sqrt{2}\sqrt{3}-\sqrt{6}", "0"),
    (r"10^{400}\pi", r"10^{399}\cdot10\pi"),
    (r"10^{-400}\pi", r"10^{-399}\cdot\frac{\pi}{10}"),
    (r"6.02\times10^{23}", "6.02e23"),
    ("1e10", "10^{10}"),
    ("1E-20", r"10^{-20}"),
    ("‑5", "-5"),
    ("－５", "-5"),
    (r"\text{negative 5}", "-5"),
    (r"\text{minus } \frac12", r"-\frac{1}{2}"),
    ("⅝", r"\frac{5}{8}"),
    ("2⁻³", r"\frac{1}{8}"),
    ("10¹²", "10^{12}"),
    ("B)", r"\text{B}"),
]
DIFFERENT = [
    (r"\frac{1}{3}", "0.5"),
    ("1000", "100"),
    (r"2\sqrt{2}", r"\sqrt{7}"),
    ("(x+1)^2", "x^2+1"),
    (r"\{1, 2\}", r"\{1, 3\}"),
    ("(0, 1)", "[0,1)"),
    (r"\text{Evelyn}", r"\text{Angela}"),
    ("", "5"),
    ("-5", "5"),
    (r"40\%", r"50\%"),
    (r"5\%", "0.5"),
    ("0.0000001", "0.0000002"),
    (r"1.6\times10^{-19}", r"3.2\times10^{-19}"),
    ("2^{-60}", "2^{-61}"),
    ("0.0000001", "0"),
    ("-0.0000001", "0.0000001"),
    (r"6.02\times10^{22}", "6.02e23"),
    (r"\text{not } 5", "5"),
    (r"\text{negative 5}", "5"),
    ("10¹³", "10^{12}"),
]
UNREADABLE = [
    ("1" * 4900 + "_7", "5"),
    (r"0.\overline{" + "3" * 4400 + "}", "5"),
    (r"5\text{ cm^①}", "5 cm"),
    ("Z" * 3900 + "1_{36}", "5"),
    ("1ſ_{30}", "5"),
    ("(" * 1500 + "5" + ")" * 1500, r"\begin{pmatrix}1\\2\end{pmatrix}"),
]


@pytest.fixture(scope="module")
def verify():
    function = build_reward_function(MathConfig())
    return lambda response, truth: function(Sample(1, "?", response, truth, "math", 3, True))


@pytest.mark.parametrize(("answer", "truth"), EQUAL)
def test_equal_answers(answer, truth, verify):
    score = verify(rf"So \boxed{{7}}, no, it is $\boxed{{{answer}}}$.", truth)
    assert score.correct and score.parts == {"answered": 1.0, "undecided": 0.0}
    assert verify(rf"\boxed{{{answer}}}", rf"so it is \boxed{{{truth}}}").correct


@pytest.mark.parametrize(("answer", "truth"), DIFFERENT)
def test_different_answers(answer, truth, verify):
    assert not verify(rf"\boxed{{{answer}}}", truth).correct


@pytest.mark.parametrize(("answer", "truth"), UNREADABLE, ids=range(len(UNREADABLE)))
def test_an_answer_that_cannot_be_read_is_undecided_and_ends_no_run(answer, truth, verify):
    score = verify(rf"\boxed{{{answer}}}", truth)
    assert not score.correct
    assert score.parts == {"answered": 1.0, "undecided": 1.0}


@pytest.mark.parametrize("response", ["5", r"\boxed 5", r"\boxed{5", ""])
def test_a_response_without_a_box_has_no_answer(response, verify):
    score = verify(response, "5")
    assert not score.correct and score.parts["answered"] == 0


def test_a_box_ends_at_its_closing_brace():
    assert extract_boxed(r"a \boxed{1} b \boxed{\frac{1}{2} \} {x}} c}") == r"\frac{1}{2} \} {x}"


def test_a_ground_truth_that_is_empty_is_an_error(verify):
    with pytest.raises(ValueError, match="ground_truth='' cannot be parsed"):
        verify(r"\boxed{5}", "")


def test_a_formula_that_never_finishes_costs_only_its_sample():
    before = set(psutil.Process().children(recursive=True))
    pool = {"name": "parallel", "num_workers": 1, "time_limit": 2.0, "retries": 0, "overdue": "incorrect"}
    manager = build_reward_manager(RewardConfig(function={"name": "math"}, manager=pool))
    answers = ("10/2", "9^{9^{9^{9}}}")
    samples = [Sample(1, "?", rf"\boxed{{{answer}}}", "5", "math", 3, True) for answer in answers]
    assert [score.parts for score in manager.score(samples)] == [
        {"answered": 1, "undecided": 0, "timed_out": 0},
        {"timed_out": 1},
    ]
    manager.close()
    assert set(psutil.Process().children(recursive=True)) <= before

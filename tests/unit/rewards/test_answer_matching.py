"""Right and wrong answers for each verifier."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from embodyflow.rewards.functions.written_numbers import parse_number
from embodyflow.rewards.interface import Sample
from embodyflow.rewards.reward_config import ExactMatchConfig, GSM8KConfig, RegexConfig
from embodyflow.rewards.reward_registry import build_reward_function


def graded(config, response, truth):
    score = build_reward_function(config)(Sample(1, "?", response, truth, "test", 3, True))
    assert score.reward == float(score.correct)
    return score


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("72", "72"),
        (" 72 clips.", "72"),
        ("$1,450,000", "1450000"),
        ("-5", "-5"),
        ("−5", "-5"),
        ("–5", "-5"),
        ("$–5", "-5"),
        ("$-5", "-5"),
        ("-$5.50", "-5.5"),
        ("+3", "3"),
        ("€ 1,000.25 each", "1000.25"),
        ("50%", "50"),
        (".5", "0.5"),
        ("0072", "72"),
        ("5.", "5"),
        ("**5**", "5"),
        ("12 (dozen)", "12"),
        ("‑5", "-5"),
        ("－５", "-5"),
        ("1，234", "1234"),
        (r"-\$5", "-5"),
        ("➖5", "-5"),
        ("١٨", "18"),
        ("1٨", "18"),
        ("- total: 5", "5"),
        ("the pre-tax sum: 5", "5"),
        ("a 5-year-old", "5"),
        ("**5** apples", "5"),
        ("5 km/h", "5"),
        (r"5^\circ", "5"),
        *(
            ("US$5", "5"),
            (r"\boxed{5}$", "5"),
            ("__5__", "5"),
            ("Total: -5", "-5"),
            ("the answer is -5", "-5"),
            ("5L", "5"),
        ),
        *(
            ("5 quarters", "5"),
            ("5 tickets!", "5"),
            ("5 for Team B", "5"),
            ("5yrs", "5"),
            ("5th", "5"),
            ("5\ufe0f\u20e3", "5"),
        ),
        *(("5</answer>", "5"), ("5 dollars a day", "5"), (r"5\text{ cm}", "5"), ("5/hour", "5"), ("5?", "5")),
        ("-123456789012345678901234567890123", "-123456789012345678901234567890123"),
    ],
)
def test_numbers_as_people_write_them(text, number):
    assert parse_number(text) == Decimal(number)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "seventy",
        "3/4",
        "10 or 12",
        "1,5",
        "1,23,456",
        "1234,567",
        "1.2.3",
        "12:30",
        "2^3",
        "5-3",
        "1e3",
        "-+5",
        "3–5",
        "3½",
        "5²",
        "12 ¾",
        "minus 5",
        "Negative $5",
        "3⅝",
        "5⁴",
        "not 5",
        "it isn't 5",
        "the answer is not $5",
        "less than 5",
        "< 5",
        "x ≠ 5",
        *("-(5)", "-|5|", "-**5**", "-R$5", "-Rs. 5", "-total 5", "-- 5", "—5", "⁻5", "±5", "+/-5", "total: -(5)"),
        *("√5", "sqrt 5", r"\sqrt{5}", "log 5", "half of 5", "two times 5", "twice 5", "the square root of 5"),
        *(
            "5k",
            "5M dollars",
            "5 dozen",
            "5 doubled",
            "5i",
            "5π",
            r"5\pi",
            "5^x",
            "5 - x",
            "5 + y",
            "5 * x",
            "5 × (y)",
            "5+ years",
        ),
        *(
            "5!",
            "5 !",
            "5!!",
            "5x",
            "5xy",
            "5 x",
            "5n",
            "5 mod x",
            "5 choose k",
            "5/x",
            "5 per x",
            "5% of x",
            "5(x)",
            "5[x]",
        ),
        *(
            "5 < x",
            "5 apples + y",
            "5 → y",
            "5 ≈ y",
            "5₃",
            "5_x",
            "5①",
            "5Ⅷ",
            "5万",
            "5 lakh",
            "5 gross",
            "5‰",
            "5e",
            "5 K",
        ),
        *(
            "5..",
            "5...",
            "0.5…",
            "5-",
            "5+",
            "5 times two",
            "5 feet six inches",
            "5 point five",
            "5 base nine",
            "5 and two thirds",
        ),
        *(
            "5 below zero",
            "5 degrees negative",
            "5, no",
            "5? No",
            "5 is too low",
            "5 apples, not more",
            "5 to the fourth",
        ),
        *(
            "x5",
            "a5",
            "x 5",
            "x - 5",
            "x + 5",
            "x -5",
            "apples - 5",
            "f(5)",
            "x*5",
            "x/5",
            "÷5",
            "x×5",
            "!5",
            "٫5",
            "up to 5",
        ),
        *(r"\frac{5}{x}", r"\frac{x}{5}", r"5\mod x", r"5\le x", r"5\approx y", "5\u0338", "5\u0305", "&lt;5"),
        *("5+ years", "5 or six", "six or 5", "5 or more", "5 and a half", "5 is wrong", "5 isn't right", "5٫5", "1٬5"),
    ],
)
def test_text_without_exactly_one_number_is_none(text):
    assert parse_number(text) is None


@pytest.mark.parametrize("text", ["5 million", "5 thousand dollars", "5 squared", "5 halves", "5 hundredths"])
def test_a_word_after_a_number_that_makes_another_one_of_it_is_no_number(text):
    assert parse_number(text) is None


@pytest.mark.parametrize(("answer", "correct"), [("6 = 5", 0), ("5 = 6 = 5", 0), ("5.0 = 5", 1), ("9 - 4 = 5", 1)])
def test_an_equation_between_other_numbers_is_no_answer(answer, correct):
    assert graded(GSM8KConfig(), f"#### {answer}", "5").correct is bool(correct)


@pytest.mark.parametrize(
    ("answer", "correct"),
    [
        *(("2 + 2 = 5", 0), ("2+2 = $5", 0), ("2 × 2 = 5", 0), ("2 x 2 = 5", 0), (r"2 \times 2 = 5", 0), ("6 = $5", 0)),
        *(("$2 + $2 = $5", 0), ("1,000 - 994 = 5", 0), ("(1 + 2) * 3 - 3 = 5", 0), ("5.5 = 5", 0), ("4 = 2+2 = 5", 0)),
        *(("2 + 3 = 5", 1), ("2+3 = $5", 1), ("20 ÷ 4 = 5", 1), ("1,000 - 995 = 5", 1), ("16/3 = 5", 1), ("x = 5", 1)),
        *(("10/3 = 3.33 = 5", 0), ("2 apples + 3 pears = 5", 1), ("5/0 = 5", 1), ("1/20 = 5%", 1), ("0.05 = 5%", 1)),
        ("(" * 150 + "5" + ")" * 150 + " = 5", 1),
    ],
)
def test_a_false_calculation_is_no_answer(answer, correct):
    assert graded(GSM8KConfig(), f"#### {answer}", "5").correct is bool(correct)


@pytest.mark.parametrize("answer", ["#### x != 5", "#### x <= 5", "#### x >= 5", "#### the answer is not 5"])
def test_a_relation_or_a_denial_is_no_number_of_gsm8k(answer):
    assert not graded(GSM8KConfig(), answer, "5").correct
    assert graded(GSM8KConfig(), "#### 10 / 2 = 5", "5").correct


NUMBERS = st.decimals(-(10**12), 10**12, places=3, allow_nan=False, allow_infinity=False)


@given(NUMBERS, st.sampled_from(["", "$", "€", "£ "]), st.sampled_from(["", ".", " clips", "% of them"]), st.booleans())
def test_currencies_units_and_separators_do_not_change_a_number(number, currency, after, grouped):
    digits = f"{abs(number):,}" if grouped else f"{abs(number)}"
    sign = "-" if number < 0 else ""
    assert parse_number(f"{sign}{currency}{digits}{after}") == number
    assert parse_number(f"{currency}{sign}{digits}{after}") == number


@given(st.text(max_size=50))
def test_any_text_is_a_number_or_none(text):
    assert parse_number(text) is None or any(character.isdigit() for character in text)


@pytest.mark.parametrize(
    ("response", "correct", "answered"),
    [
        ("7+5=12 is 122 ## 122", True, 1),
        ("##122", True, 1),
        ("## 122 \n", True, 1),
        ("## 121 ## 122", True, 1),  # the last one counts
        ("## 122 ## 121", False, 1),
        ("## 1220", False, 1),
        ("##", False, 1),
        ("122", False, 0),
        ("", False, 0),
    ],
)
def test_exact_match_after_the_marker(response, correct, answered):
    score = graded(ExactMatchConfig(), response, "122")
    assert (score.correct, score.parts["answered"]) == (correct, answered)


def test_exact_match_of_the_whole_response():
    assert graded(ExactMatchConfig(marker=None), " Paris\n", "Paris").correct
    assert not graded(ExactMatchConfig(marker=None), "Paris!", "Paris").correct


@pytest.mark.parametrize(
    ("response", "correct"),
    [
        ("#### 72", True),
        ("so 70.\n#### 72", True),
        ("####72 clips\nBye 5", True),
        ("#### $72.00", True),
        ("#### 7\n#### 72", True),
        ("#### 72\n#### 7", False),
        ("#### 71", False),
        ("#### -72", False),
        ("#### 72 71 70", False),  # several numbers are not an answer
        ("#### 144/2", False),
        ("####", False),
        ("72", False),
    ],
)
def test_gsm8k(response, correct):
    assert graded(GSM8KConfig(), response, "72 = <<48+24=72>>72 altogether.\n#### 72").correct is correct
    assert graded(GSM8KConfig(), response, "72").correct is correct
    assert graded(GSM8KConfig(), response, 72).correct is correct


def test_a_ground_truth_that_is_not_a_number_is_an_error():
    with pytest.raises(ValueError, match="ground_truth='none' is not a number"):
        graded(GSM8KConfig(), "#### 72", "none")


def test_regex_takes_the_last_match():
    config = RegexConfig(pattern=r"answer is\s+(\w+)")
    assert graded(config, "The answer is A, no, the answer is  B.", "B").correct
    assert not graded(config, "The answer is B, no, the answer is A.", "B").correct
    assert graded(config, "B", "B").parts["answered"] == 0


@pytest.mark.parametrize(
    ("pattern", "message"), [("(", "is not a regular expression"), ("a", "has 0 groups"), ("(a)(b)", "has 2")]
)
def test_a_bad_pattern_is_named(pattern, message):
    with pytest.raises(ValidationError, match=message):
        RegexConfig(pattern=pattern)


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("1{,}234", "1234"),
        (r"1\,234", "1234"),
        (r"1\ 234 clips", "1234"),
        (r"\$12{,}345{,}678.50", "12345678.5"),
        ("9 * 2 = 18", "18"),
        ("9 * 2 = <<9*2=18>>18", "18"),
        ("7+5 = <<7+5=12>>12 eggs", "12"),
        (r"\boxed{72}", "72"),
        ("$72$", "72"),
        ("72.", "72"),
    ],
)
def test_gsm8k_reads_other_spellings_of_a_number(answer, number):
    for truth in (number, f"#### {number}", f"The answer is {number}.", Decimal(number).__float__(), [number, "0"]):
        assert graded(GSM8KConfig(), f"#### {answer}", truth).correct
    assert graded(GSM8KConfig(), f"#### {number}", f"#### {answer}").correct
    assert not graded(GSM8KConfig(), f"#### {answer}", "1").correct
    assert not graded(GSM8KConfig(), f"#### {answer}", "235").correct


@pytest.mark.parametrize(
    ("answer", "truth", "correct"),
    [
        ("34", "34.", True),
        ("34", "#### 34", True),
        ("34", "The answer is 34", True),
        ("The answer is 34.", "34", True),
        ("34", 34, True),
        ("34", 34.0, True),
        ("1,234", "1234", True),
        ("1{,}234", "1,234", True),
        (r"1\,234", "1234", True),
        ("235", r"1\,234", False),
        ("12:00", "12:00", True),
        ("b", ["a", "b"], True),
        ("c", ["a", "b"], False),
        ("AB", "BA", False),
        ("5 cm", "5 m", False),
        ("Paris.", "Paris", True),
    ],
)
def test_exact_match_of_equal_texts_and_numbers(answer, truth, correct):
    assert graded(ExactMatchConfig(), f"so ## {answer}", truth).correct is correct


@pytest.mark.parametrize("config", [ExactMatchConfig(marker="####"), GSM8KConfig()])
def test_only_text_after_the_thinking_counts(config):
    assert graded(config, "<think>#### 35</think>#### 34", "34").correct
    assert not graded(config, "<think>#### 34</think>#### 35", "34").correct
    assert graded(config, "<think>#### 34</think> Done.", "34").parts["answered"] == 0
    assert graded(config, "<think>#### 34", "34").parts["answered"] == 0
    assert not graded(RegexConfig(pattern=r"is (\d+)"), "<think>is 34</think> is 35", "34").correct


@pytest.mark.parametrize("config", [ExactMatchConfig(), GSM8KConfig(), RegexConfig(pattern="(.)")])
@pytest.mark.parametrize("truth", [None, {"ground_truth": "5"}, [], " ", float("inf")])
def test_ground_truths_of_other_kinds_are_errors(config, truth):
    with pytest.raises(ValueError, match="ground_truth"):
        graded(config, "## 5", truth)

"""Right and wrong answers of each kind, with other numbers and spellings than the gold."""

import random
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from embodyflow.rewards.functions.mathematics import verify_boxed
from embodyflow.rewards.interface import Sample

few = settings(max_examples=60, deadline=None)


def score(answer, gold, response=None):
    return verify_boxed(Sample(1, "?", response or rf"\boxed{{{answer}}}", gold, "math", 3, True))


def right(answer, gold):
    return score(answer, gold).correct


# By kind: answer, gold, right.
CASES = {
    "golds": [
        ("34", "34.", 1),
        ("34", "#### 34", 1),
        ("34", "The answer is 34", 1),
        ("34", "The answer is $34$.", 1),
        ("34", "So the answer is $34.", 1),
        ("34", "Answer: 34.", 1),
        ("34", r"The final answer is \boxed{34}.", 1),
        ("34", "= 34", 1),
        ("35", "#### 34", 0),
        ("512", "2 * 256 = 512\n#### 512", 1),
        ("72", 72, 1),
        ("72", 72.0, 1),
        ("0.5", 0.5, 1),
        ("5", ["4", "5"], 1),
        ("5", [4, 5.0], 1),
        (r"\frac12", ["4", "0.5"], 1),
        ("6", ["4", "5"], 0),
    ],
    "trailing dots": [
        ("5.", "5", 1),
        ("3.14.", "3.14", 1),
        ("x=7.", "7", 1),
        ("1., 2.", "1,2", 1),
        ("17", "17,", 1),
        ("5.", "50", 0),
    ],
    "times, ratios and dates": [
        ("12:00", "12:00", 1),
        ("7:45", "7:45", 1),
        ("07:45", "7:45", 1),
        ("7:45", "7:54", 0),
        ("12:00", "12", 0),
        ("1:10", "2:20", 0),
        ("15:30", "3:30 p.m.", 1),
        ("3:30 p.m.", "3:30", 1),
        (r"3:30\text{ p.m.}", "3:30 pm", 1),
        ("12:30 p.m.", "12:30 a.m.", 0),
        ("3:4", "6:8", 1),
        ("3:4", "4:3", 0),
        ("2 : 3", "2:3", 1),
        ("2:3", r"\frac23", 1),
        (r"2 \text{ to } 3", "2:3", 1),
        ("1:2:3", "2:4:6", 1),
        ("5/12/2020", "5/12/2020", 1),
        ("5/12/2020", "5/12/2021", 0),
        ("2020-05-12", "2003", 0),
        ("July 4, 1776", "July 4, 1776", 1),
        ("July 4", "July 5", 0),
    ],
    "thousands": [
        ("1234", r"1\,234", 1),
        ("235", r"1\,234", 0),
        ("1", r"1\,234", 0),
        ("1", "1{,}234", 0),
        ("234", r"1\ 234", 0),
        ("1234", "1{,}234", 1),
        ("1234", r"1\ 234", 1),
        ("1234", "1 234", 1),
        ("12345", r"12\;345", 1),
        ("12345", "12~345", 1),
        ("12345", "12,345", 1),
        ("345", "12,345", 0),
        ("12", "12,345", 0),
        ("1234567", r"1\,234\,567", 1),
        ("1234567", "1,234,567", 1),
        ("1,234.5", "1234.5", 1),
        (r"\frac{1{,}234}{2}", "617", 1),
        (r"\$1{,}234", "1234", 1),
        ("1,234 dollars", "1234", 1),
        ("100, 200, 300", "100,200,300", 1),
        ("300,200,100", "100, 200, 300", 1),
    ],
    "complex numbers": [
        ("0.5+0.5i", r"\frac12+\frac12 i", 1),
        (r"\frac{3+4i}{5}", "0.6+0.8i", 1),
        ("3-2i", "-2i+3", 1),
        ("3-2i", "3+2i", 0),
        (r"\frac{i}{2}", "0.5i", 1),
        ("2.5 - 1.5i", r"\frac{5}{2} - \frac{3i}{2}", 1),
        ("1.5i", r"\frac32 i", 1),
        ("0.25-0.75i", r"\frac14-\frac34i", 1),
        ("0.25+0.75i", r"\frac14-\frac34i", 0),
        ("(1+i)^2", "2i", 1),
        (r"\frac{1}{i}", "-i", 1),
        (r"e^{i\pi}", "-1", 1),
    ],
    "units": [
        (r"\text{16 dollars}", "16", 1),
        (r"\text{25 miles}", "25", 1),
        (r"16\text{ dollars}", r"16\text{ euros}", 0),
        ("16 apples", "16", 1),
        ("16 apples", "16 pears", 0),
        ("5 cm", "5 m", 0),
        ("5 cm", "5", 1),
        ("5m", "5", 0),  # a product
        ("100 cm", "1 m", 1),
        (r"5\text{ cm}^2", r"5\text{ cm}", 0),
        (r"5\text{ cm}^2", "5 square centimeters", 1),
        (r"60\text{ m/s}", "60 meters per second", 1),
        ("60 mph", "60 km per hour", 0),
        (r"\$18.90", "18.9", 1),
        (r"\$1.50", "150 cents", 1),
        ("3 kg", "3 g", 0),
        ("3 kg", "3000 g", 1),
        ("2 h", "2 min", 0),
        (r"2 \text{ hours}", r"120 \text{ min}", 1),
        ("4 ft", "48 in", 1),
        ("10 mL", "10 L", 0),
        (r"\frac{3}{4}\text{ mile}", "0.75", 1),
        (r"90^\circ", "90", 1),
        (r"90^\circ", r"\frac{\pi}{2}", 1),
        (r"30^\circ", "31", 0),
        ("p.m.", "a.m.", 0),
        (r"\text{a.m.}", r"\text{p.m.}", 0),
        ("8 a.m.", "8 p.m.", 0),
        (r"8\text{ AM}", "8 a.m.", 1),
        (r"5 \text{ hours and } 20 \text{ minutes}", "5 hours and 20 minutes", 1),
        ("50", "50 percent", 1),
    ],
    "scales": [
        ("5 million", "5", 0),
        ("5 million", "5000000", 1),
        (r"\$2.5\text{ million}", "2500000", 1),
        ("2.5 million", "2.5 thousand", 0),
        ("5 hundred thousand", "500,000", 1),
        (r"\text{3 thousand dollars}", "3000", 1),
        (r"\frac12\text{ million}", r"\frac12", 0),
        ("5 squared", "5", 0),
        ("5 tenths", "5", 0),
        ("5 factorial", "5", 0),
        (r"5\text{ halves}", "5", 0),
        (r"5\text{ is not correct}", "5", 0),
        (r"5\text{ not}", "5", 0),
        ("5 meters squared", r"5\text{ m}^2", 1),
        (r"50\%\%", "50", 0),
        *[
            (f"18 {words}", "18", 0)
            for words in ("lakh", "crore", "gross", "score", "mil", "grand", "ths", "double", "twice", "below zero")
        ],
        *[(f"18 {words}", "18", 0) for words in ("one half", "point five", "remainder three", "feet six inches")],
        ("18 quarters", "18", 1),
        ("18 K", "18", 1),  # kelvins
    ],
    "bases": [
        ("101_3", "101_2", 0),
        ("231_5", "231_4", 0),
        ("101", "101_2", 0),
        ("18_x", "18", 0),
        ("123", "123_b", 0),
        ("123_{b}", "123_b", 1),
        ("124_b", "123_b", 0),
        ("5", "101_2", 0),
        ("312_{4}", "312_4", 1),
        (r"\text{1101}_2", "1101_2", 1),
        (r"101_{\text{two}}", "101_2", 1),
        ("1101 base 2", "1101_2", 1),
        ("(1101)_2", "1101_2", 1),
        ("2A_{16}", "2a_{16}", 1),
    ],
    "words": [
        ("BA", "AB", 0),
        ("DOG", "GOD", 0),
        ("cat", "act", 0),
        ("no", "on", 0),
        (r"\text{BA}", r"\text{AB}", 0),
        (r"\overline{AB}", r"\overline{BA}", 0),
        ("yes", "Yes", 1),
        ("Alice", "Bob", 0),
        (r"\text{no solution}", "No solution", 1),
        (r"\text{(B)}", "B", 1),
        ("C", r"\textbf{(C)}", 1),
        (r"\text{(A)}", r"\text{(C)}", 0),
        ("x", "X", 0),
        ("xy", "yx", 1),  # variables commute
        ("2xy", "2yx", 1),
        ("pq", "qp", 1),
        (r"\text{seven}", "7", 0),
    ],
    "lists": [
        ("1,1,2", "1,2", 0),
        ("1,2", "1,1,2", 0),
        ("2,3,3", "2,2,3", 0),
        ("2,2,3", "3,2,2", 1),
        (r"\{1,1,2\}", r"\{1,2\}", 1),
        (r"\{2,2,3\}", r"\{3,2\}", 1),
        (r"\{1,2\}", "(1,2)", 0),
        ("(1,2)", "(2,1)", 0),
        ("(1,1)", "1", 0),
        ("(1,1,2)", "(1,2)", 0),
        ("[1,2)", "[1,2]", 0),
        (r"\left(\frac{1}{2},-3\right)", "(0.5,-3)", 1),
        ("3 and 4", "4,3", 1),
        ("x=1,y=2", "y=2,x=1", 1),
        ("2,1", "x=1,y=2", 0),
        (r"\pm 2", "2,-2", 1),
        ("2", r"\pm 2", 0),
        (r"1\pm\sqrt2", r"1+\sqrt2, 1-\sqrt2", 1),
    ],
    "exactness": [
        (r"\frac{1}{2006!}", r"\frac{1}{2004!}", 0),
        (r"\frac{1}{100!}", r"\frac{1}{99!}", 0),
        (r"\frac{2}{2006!}", r"\frac{4}{2\cdot2006!}", 1),
        (r"\frac{2005!}{2006!}", r"\frac{1}{2006}", 1),
        ("0", r"\frac{1}{2006!}", 0),
        ("2^{1000}", "2^{1000}+1", 0),
        ("2^{100}", "1267650600228229401496703205376", 1),
        ("2^{100}", "1267650600228229401496703205377", 0),
        ("10^{-50}", "10^{-51}", 0),
        ("e^{-1000}", "e^{-1001}", 0),
        (r"\sqrt{2}+10^{-30}", r"\sqrt2", 0),
        (r"10^{30}\sqrt2", r"10^{30}\sqrt2+1", 0),
        ("10^{-7}x", r"2\cdot10^{-7}x", 0),
        ("x+10^{-12}", "x", 0),
        ("1000000.0", "1000001", 0),
        ("1234567.1", "1234567.2", 0),
        (r"\frac{1}{1000001}", r"\frac{1}{1000000}", 0),
        ("72.0000001", "72", 0),
        ("0.30000000000000004", "0.3", 1),
        ("0.333333", "1/3", 1),
        ("0.33", "1/3", 0),
        (r"3.141593", r"\pi", 1),
        ("3.14", r"\pi", 0),
        (r"0.\overline{3}", "1/3", 1),
        (r"3\frac{1}{5}", "3.2", 1),
        ("1.5e3", "1500", 1),
    ],
    "chains": [
        ("6=5", "5", 0),
        ("6 = 5", "6", 0),
        (r"\frac{10}{3}=5", "5", 0),
        (r"\sqrt{4}=2", "2", 1),
        ("2+3=5", "5", 1),
        ("2+3=6-1=5", "5", 1),
        ("2+3=7=5", "5", 0),
        ("x=2+3=5", "5", 1),
        ("x=6=5", "5", 0),
        ("x=5=6", "x=6", 0),
        ("x=y=5", "5", 1),
        ("(6=5)", "5", 0),
        (r"\text{6=5}", "5", 0),
        ("6=5, 7", "5, 7", 0),
        ("6==5", "5", 0),
        ("6:=5", "5", 0),
        (r"6\equiv5", "5", 0),
        (r"50\%=0.5", "0.5", 1),
        (r"60\%=0.5", "0.5", 0),
        (r"\frac13=33\%", r"33\%", 1),
        (r"\frac13=40\%", r"40\%", 0),
        ("1/3=0.33", "0.33", 1),
        ("1/3=0.35", "0.35", 0),
        ("5.4=5", "5", 0),
        (r"\pi\approx3.14", "3.14", 1),
        ("π≈3.14", "3.14", 1),
        (r"998\approx1000", "1000", 1),
        (r"4\approx5", "5", 0),
        ("5", "6=5", 0),
        ("0.999...=1", "1", 1),  # no one can read the left side
    ],
    "formulas": [
        ("x=5", "x=6", 0),
        ("y=5", "x=5", 0),
        ("y=2x+1", "2x+1", 1),
        ("y=2x+3", "y-2x=3", 1),
        ("y - 2x = 3", "2x - y = -3", 1),
        ("x^2+y^2=1", "2x^2+2y^2=2", 1),
        ("2x-3y=1", "2x-3y=2", 0),
        ("x>5", "5<x", 1),
        ("x<5", "x>5", 0),
        (r"x\ge2", r"[2,\infty)", 1),
        (r"(-\infty,2)\cup(3,\infty)", r"(3,\infty) \cup (-\infty,2)", 1),
        (r"(-\infty,2)\cup(3,\infty)", r"(-\infty,2)\cup(4,\infty)", 0),
        (r"9 \cdot 2 = 18", "18", 1),
        (r"\sin^2 x+\cos^2 x", "1", 1),
        (r"\frac{x^2-1}{x-1}", "x+1", 1),
        (r"\ln(x^2)", r"2\ln x", 1),
        (r"\frac{x}{y}", r"\frac{y}{x}", 0),
        ("(-1)^n", "(-1)^{n+1}", 0),
        (r"\infty", r"-\infty", 0),
        ("3x", "3", 0),
        ("x'", "x", 0),
        ("x''", "x'", 0),
        ("2x'", "x'+x'", 1),
        ("sqrt(2)", r"\sqrt2", 1),
        ("2pi", r"2\pi", 1),
        (r"\emptyset", r"\emptyset", 1),
        (r"\varnothing", r"\emptyset", 1),
        (r"\{\}", r"\emptyset", 1),
        (r"\left\{ \right\}", r"\varnothing", 1),
        ("∅", r"\emptyset", 1),
        ("0", r"\emptyset", 0),
        (r"\{0\}", r"\emptyset", 0),
        (r"\lvert x \rvert", "|x|", 1),
        (r"\mathbb R", r"\mathbb{R}", 1),
        ("ℝ", r"\mathbb{R}", 1),
        ("ℤ", r"\mathbb{R}", 0),
        (r"1,2,\ldots,n", r"1,2,\dots,n", 1),
    ],
}


@pytest.mark.parametrize(("answer", "gold", "correct"), [case for cases in CASES.values() for case in cases])
def test_answers_of_each_kind(answer, gold, correct):
    assert right(answer, gold) is bool(correct)


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        ({"ground_truth": "72"}, r"is a mapping with ground_truth; .* column reward_model\.ground_truth$"),
        (None, "ground_truth is None; allowed are"),
        (True, "ground_truth is True; allowed are"),
        (float("nan"), "allowed are finite numbers"),
        ([], "is an empty list"),
        (["5", None], "ground_truth is None"),
        ("  ", "cannot be parsed"),
        ("There are 34 apples", "is prose"),
        ("Tom bought 12 red pens", "is prose"),
        ("It is known that no such number exists in the plane at all", "is prose"),
    ],
)
def test_golds_that_cannot_be_judged_are_errors(truth, message):
    with pytest.raises(ValueError, match=message):
        score("72", truth)


@pytest.mark.parametrize(
    ("response", "correct", "answered"),
    [
        (r"<think>\boxed{34}</think> The answer is 35", 0, 0),
        (r"<think>\boxed{34}</think> \boxed{35}", 0, 1),
        (r"<think>\boxed{35}</think> \boxed{34}", 1, 1),
        (r"\boxed{35}</think> \boxed{34}", 1, 1),
        (r"<think>a</think>\boxed{35}<think>b</think>\boxed{34}", 1, 1),
        (r"<think>so \boxed{34}", 0, 0),
        (r"</think>\boxed{34}<think>\boxed{35}", 1, 1),
        (r"\boxed{34}, no, \boxed{35}", 0, 1),
    ],
)
def test_only_the_last_box_after_the_thinking_counts(response, correct, answered):
    graded = score(None, "34", response)
    assert (graded.correct, graded.parts["answered"]) == (bool(correct), answered)


SEPARATORS = ("{,}", r"\,", ",", r"\ ", " ", r"\;", "~", r",\!", "{\\,}")


@few
@given(st.integers(1000, 10**12), st.sampled_from(SEPARATORS))
def test_separated_thousands_are_one_number(number, separator):
    grouped = f"{number:,}".replace(",", separator)
    assert right(grouped, str(number)) and right(str(number), grouped)
    for part in {*f"{number:,}".split(","), str(sum(map(int, f"{number:,}".split(","))))}:
        assert not right(part, grouped)


@few
@given(st.integers(0, 23), st.integers(0, 59), st.integers(0, 23), st.integers(0, 59))
def test_times_are_equal_only_to_themselves(hour, minute, other_hour, other_minute):
    time, other = f"{hour}:{minute:02}", f"{other_hour}:{other_minute:02}"
    assert right(f"{hour:02}:{minute:02}", time)
    assert right(time, other) is (time == other)
    if 1 <= hour <= 12:
        assert right(rf"{time}\text{{ p.m.}}", f"{time} PM") and not right(f"{time} a.m.", f"{time} p.m.")


@few
@given(st.integers(2, 9), st.integers(2, 9), st.lists(st.sampled_from("01"), min_size=2, max_size=6))
def test_bases_count(base, other, digits):
    number = "1" + "".join(digits)
    assert right(f"{number}_{{{base}}}", f"{number}_{base}")
    assert right(f"{number}_{other}", f"{number}_{base}") is (base == other)
    assert not right(number, f"{number}_{base}")


@few
@given(st.lists(st.integers(-9, 9), min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_lists_count_repetitions_and_sets_do_not(numbers, rng):
    shuffled = rng.sample(numbers, len(numbers))
    join = ", ".join
    text, other = join(map(str, numbers)), join(map(str, shuffled))
    more = join(map(str, [*shuffled, numbers[0]]))
    assert right(other, text) and not right(more, text)
    assert right(rf"\{{{more}\}}", rf"\{{{text}\}}")
    assert right(f"({other})", f"({text})") is (numbers == shuffled)


@few
@given(st.text("ABCDEFGH", min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_anagrams_differ(word, rng):
    other = "".join(rng.sample(word, len(word)))
    assert right(other, word) is (other == word)
    assert right(rf"\text{{{other}}}", rf"\text{{{word}}}") is (other == word)


@few
@given(st.integers(-20, 20), st.integers(1, 20), st.sampled_from([1, 2, 4, 5, 8, 10]))
def test_complex_numbers_in_mixed_forms(real, imaginary, below):
    decimal = f"{float(Fraction(real, below))}+{float(Fraction(imaginary, below))}i"
    fraction = rf"\frac{{{real}}}{{{below}}}+\frac{{{imaginary}}}{{{below}}} i"
    assert right(decimal, fraction) and right(fraction, decimal)
    assert right(rf"\frac{{{real}+{imaginary}i}}{{{below}}}", decimal)
    assert not right(decimal.replace("+", "-"), fraction)


@few
@given(st.fractions(max_denominator=10**6), st.fractions(max_denominator=10**6))
def test_fractions_are_exact(one, other):
    texts = [rf"\frac{{{number.numerator}}}{{{number.denominator}}}" for number in (one, other)]
    assert right(*texts) is (one == other)
    assert right(f"{one.numerator}/{one.denominator}", texts[0])


@few
@given(st.integers(1, 10**6), st.sampled_from(["cm", "kg", "apples", "dollars", "hours", "students"]))
def test_units_on_one_side_are_ignored(number, unit):
    for spelled in (f"{number} {unit}", rf"{number}\text{{ {unit}}}", rf"\text{{{number} {unit}}}"):
        assert right(spelled, str(number)) and right(str(number), spelled)
        assert not right(str(number + 1), spelled) and not right(spelled, f"{number} eggs")


@few
@given(st.integers(30, 400), st.integers(30, 400))
def test_tiny_and_huge_numbers_are_compared_by_their_ratio(one, other):
    assume(one != other)
    assert not right(rf"10^{{-{one}}}", rf"10^{{-{other}}}")
    assert not right(rf"\frac{{1}}{{{one}!}}", rf"\frac{{1}}{{{other}!}}")
    assert right(rf"2^{{{one}}}\cdot2^{{{other}}}", rf"2^{{{one + other}}}")


@few
@given(st.text("0123456789abixyABC+-*/^_=<>,.:;{}()[]|!%$ \\", max_size=14), st.integers(0, 99))
def test_no_answer_breaks_the_grader(text, seed):
    gold = random.Random(seed).choice(["34", "101_2", "5 cm", "x+1", "1,2", "(1,2)", "AB", "12:00", "x>1", "3:4"])
    assume("!" not in text and "^" not in text)  # towers of powers need the pool's deadline
    score(text, gold)

"""Sums after worked examples."""

from typing import get_args

import pytest
from pydantic import ValidationError

from embodyflow.prompts.few_shot_sums import FewShotSumsPrompts
from embodyflow.prompts.prompt_config import FewShotSumsConfig
from embodyflow.prompts.prompts import Split


def test_examples_are_right_and_in_no_other_split() -> None:
    source = FewShotSumsPrompts(FewShotSumsConfig(num_other_digits=1, num_examples=3))
    prompt = source.prompt("validation", 0)
    *examples, question, end = (prompt.text or "").replace("=", "\n=").split("\n")
    assert end == "=" and len(examples) == 6
    left, right = map(int, question.split("+"))
    assert prompt.ground_truth == str(left + right) == source.demonstration("validation", 0)
    shown = {frozenset(map(int, sums.split("+"))) for sums in examples[::2]}
    assert len(shown) == 3
    for sums, result in zip(examples[::2], examples[1::2], strict=True):
        assert f"={sum(map(int, sums.split('+')))}" == result
    asked = {frozenset(source.pair(split, index)) for split in ("train", "validation") for index in range(50)}
    assert not shown & asked


def test_numbers_have_their_digits_in_both_orders() -> None:
    source = FewShotSumsPrompts(FewShotSumsConfig(num_other_digits=1))
    pairs = [source.pair(split, index) for split in get_args(Split) for index in range(source.num_prompts(split))]
    assert len(pairs) == len(set(pairs)) == 2 * 9 * 90
    assert {tuple(len(str(number)) for number in pair) for pair in pairs} == {(1, 2), (2, 1)}
    ids = [source.prompt("train", index).prompt_id for index in range(source.num_prompts("train"))]
    assert len(ids) == len(set(ids))


def test_numbers_of_as_many_digits_are_those_of_plain_sums() -> None:
    source = FewShotSumsPrompts(FewShotSumsConfig(num_digits=1, num_other_digits=1, num_examples=0))
    assert sum(source.num_prompts(split) for split in get_args(Split)) == 81
    assert len(source.prompt("train", 0).text or "") == len("1+2=")


def test_the_other_number_is_not_longer() -> None:
    with pytest.raises(ValidationError, match="num_other_digits=3: allowed are 1 to num_digits=2"):
        FewShotSumsConfig(num_other_digits=3)

"""Sums for a model that checks itself: quick answers, corrections, and the tokens of both."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.prompts.prompt_config import SelfCorrectConfig
from embodyflow.prompts.self_correct import FEEDBACK, SelfCorrectPrompts, add_without_carries, build_tokenizer


@pytest.mark.parametrize(
    ("left", "right", "digits"), [(27, 95, "12"), (12, 34, "46"), (50, 50, "00"), (7, 8, "5"), (199, 901, "090")]
)
def test_a_sum_without_carries(left: int, right: int, digits: str) -> None:
    assert add_without_carries(left, right) == digits


@given(st.integers(10, 99), st.integers(10, 99))
def test_it_is_right_exactly_where_no_column_carries(left: int, right: int) -> None:
    carries = any(int(a) + int(b) > 9 for a, b in zip(str(left), str(right), strict=True))
    assert (add_without_carries(left, right) == str(left + right)) is not carries


def test_demonstrations_correct_a_quick_answer_only_if_it_is_wrong() -> None:
    source = SelfCorrectPrompts(SelfCorrectConfig())
    lengths = []
    for index in range(source.num_prompts("demo")):
        left, right = source.pair("demo", index)
        turns = source.demonstration_turns("demo", index)
        answers = [turn.rpartition("## ")[2] for turn in turns]
        assert answers[-1] == source.prompt("demo", index).ground_truth == str(left + right)
        assert all(answer != str(left + right) for answer in answers[:-1])
        lengths.append(len(turns))
    assert set(lengths) == {1, 2} and 0.2 < lengths.count(1) / len(lengths) < 0.3


def test_the_tokenizer_knows_every_word() -> None:
    source, tokenizer = SelfCorrectPrompts(SelfCorrectConfig()), build_tokenizer()
    for index in range(20):
        texts = [source.prompt("demo", index).messages[0]["content"], *source.demonstration_turns("demo", index)]
        for text in (*texts, FEEDBACK):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert tokenizer.unk_token_id not in ids and tokenizer.decode(ids) == text

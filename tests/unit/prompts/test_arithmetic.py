"""Sums, their splits, their worked answers and their tokenizer."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers import AutoTokenizer

from embodyflow.prompts.arithmetic import ArithmeticPrompts, build_tokenizer, work_out
from embodyflow.prompts.prompt_config import ArithmeticConfig
from embodyflow.prompts.prompts import Prompt, PromptTooLongError, Split, encode, encode_response

SPLITS = get_args(Split)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Save the tokenizer to a folder and load it again."""
    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer().save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("num_digits", [1, 2])
def test_every_sum_is_in_one_split_with_its_mirror_image(num_digits):
    source = ArithmeticPrompts(ArithmeticConfig(num_digits=num_digits))
    seen = {}
    for split in SPLITS:
        for index in range(source.num_prompts(split)):
            left, right = map(int, source.prompt(split, index).text.rstrip("=").split("+"))
            assert seen.setdefault(frozenset((left, right)), split) == split
    counts = [source.num_prompts(split) for split in SPLITS]
    numbers = 9 * 10 ** (num_digits - 1)
    assert sum(counts) == numbers**2 and len(seen) == numbers * (numbers + 1) // 2
    ids = {source.prompt(split, i).prompt_id for split in SPLITS for i in range(source.num_prompts(split))}
    assert len(ids) == sum(counts)


def test_splits_have_the_configured_fractions():
    config = ArithmeticConfig(validation_fraction=0.25, demo_fraction=0.5)
    source = ArithmeticPrompts(config)
    shares = {split: source.num_prompts(split) / 8100 for split in SPLITS}
    assert shares == pytest.approx({"train": 0.25, "validation": 0.25, "demo": 0.5}, abs=0.01)
    with pytest.raises(ValidationError, match=r"validation_fraction \+ demo_fraction = 1 leaves no pairs"):
        ArithmeticConfig(validation_fraction=0.5, demo_fraction=0.5)


def test_the_split_depends_on_its_seed():
    def sums(seed):
        source = ArithmeticPrompts(ArithmeticConfig(split_seed=seed))
        return [source.prompt("validation", index).text for index in range(50)]

    assert sums(0) == sums(0) != sums(1)


def test_an_index_outside_the_split_is_refused():
    source = ArithmeticPrompts(ArithmeticConfig(num_digits=1))
    for index in (-1, source.num_prompts("demo")):
        with pytest.raises(IndexError, match=rf"index={index}: allowed are 0 to {source.num_prompts('demo') - 1}"):
            source.prompt("demo", index)


@pytest.mark.parametrize(
    ("left", "right", "columns"),
    [(21, 98, "1+8=09,2+9=11"), (27, 95, "7+5=12,2+9+1=12"), (5, 5, "5+5=10"), (999, 1, "9+1=10,9+0+1=10,9+0+1=10")],
)
def test_columns_by_hand(left, right, columns):
    assert work_out(left, right) == columns


@given(st.integers(100, 999), st.integers(100, 999))
def test_the_columns_add_up(left, right):
    total = 0
    for place, column in enumerate(work_out(left, right).split(",")):
        terms, result = column.split("=")
        assert sum(map(int, terms.split("+"))) == int(result)
        total += int(result[-1]) * 10**place
    assert total + int(result[0]) * 10 ** (place + 1) == left + right


def test_prompt_and_demonstration():
    source = ArithmeticPrompts(ArithmeticConfig())
    prompt, response = source.prompt("demo", 7), source.demonstration("demo", 7)
    assert prompt.text == f"{prompt.prompt_id // 100}+{prompt.prompt_id % 100}="
    assert response.endswith(f" is {prompt.ground_truth} ## {prompt.ground_truth}")
    assert prompt.data_source == "arithmetic" and prompt.messages is None


def test_decoding_returns_the_encoded_text(tokenizer):
    source = ArithmeticPrompts(ArithmeticConfig(num_digits=3))
    for index in range(20):
        prompt, response = source.prompt("demo", index), source.demonstration("demo", index)
        ids = encode(prompt, tokenizer, 10)
        assert ids[0] == tokenizer.bos_token_id and tokenizer.decode(ids[1:]) == prompt.text
        ids = encode_response(prompt, response, tokenizer)
        assert ids[-1] == tokenizer.eos_token_id and tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == response
    assert len({tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}) == 3
    assert len(tokenizer) == 19


def test_a_chat_of_one_question_is_the_plain_prompt(tokenizer):
    plain = Prompt(0, "12+34=", None, "46", "arithmetic")
    chat = Prompt(0, None, [{"role": "user", "content": "12+34="}], "46", "arithmetic")
    assert encode(plain, tokenizer, 7) == encode(chat, tokenizer, 7)


def test_a_prompt_that_is_too_long_is_named_and_never_cut(tokenizer):
    with pytest.raises(PromptTooLongError, match=r"prompt 5 of sums has 7 tokens; allowed are .* max_prompt_tokens=6"):
        encode(Prompt(5, "12+34=", None, "46", "sums"), tokenizer, 6)


def test_a_prompt_is_a_text_or_a_chat():
    for text, messages in ((None, None), ("a", [{"role": "user", "content": "a"}])):
        with pytest.raises(ValueError, match="prompt 3 of sums: needs either a text or messages"):
            Prompt(3, text, messages, "46", "sums")

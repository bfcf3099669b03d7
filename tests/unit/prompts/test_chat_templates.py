"""The chat template: its keyword arguments, and the tokens with which it ends a turn."""

import pytest
from chat_tokenizers import chatml

from embodyflow.prompts.prompts import Prompt, encode, encode_response, end_of_response

ASKED = [{"role": "user", "content": "1+1="}]


@pytest.fixture
def tokenizer():
    return chatml()


def chat(**template_kwargs):
    return Prompt(0, None, ASKED, "2", "sums", template_kwargs=template_kwargs)


def test_a_turn_ends_as_the_template_ends_it(tokenizer):
    end = tokenizer.convert_tokens_to_ids("<end>")
    assert end != tokenizer.eos_token_id
    assert end_of_response(chat(), tokenizer) == (end,)
    assert encode_response(chat(), "2", tokenizer) == (*tokenizer("2", add_special_tokens=False)["input_ids"], end)
    text = Prompt(0, "1+1=", None, "2", "sums")
    assert end_of_response(text, tokenizer) == (tokenizer.eos_token_id,)


def test_prompt_and_response_are_the_templates_rendering_of_both(tokenizer):
    whole = tokenizer.apply_chat_template([*ASKED, {"role": "assistant", "content": "2"}], return_dict=False)
    ids = (*encode(chat(), tokenizer, 50), *encode_response(chat(), "2", tokenizer))
    assert ids == tuple(whole[: len(ids)])


@pytest.mark.parametrize(
    ("after", "tokens"),
    [(" is <end>\n", [" is ", "<end>"]), ("<eos><end>", ["<eos>"]), ("==", ["<eos>"]), ("", ["<eos>"])],
)
def test_a_turn_ends_with_its_first_special_token_or_else_with_the_end_of_a_sequence(after, tokens, tokenizer):
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}" + after + "{% endfor %}"
    assert end_of_response(chat(), tokenizer) == tuple(tokenizer.convert_tokens_to_ids(tokens))


def test_a_template_that_drops_the_answer_ends_with_the_end_of_a_sequence(tokenizer):
    tokenizer.chat_template = "{{ messages[0]['content'] }}<end>"
    assert end_of_response(chat(), tokenizer) == (tokenizer.eos_token_id,)


def test_keyword_arguments_reach_the_template(tokenizer):
    plain, silent = encode(chat(), tokenizer, 50), encode(chat(thinking=False), tokenizer, 50)
    assert len(silent) > len(plain) and silent[: len(plain)] == plain
    assert encode(chat(thinking=True), tokenizer, 50) == plain

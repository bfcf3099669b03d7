"""Tokenizers of the sums with other chat templates."""

from typing import Any

from embodyflow.prompts.arithmetic import build_tokenizer

CHATML = (
    "{% for m in messages %}<start>{{ m['role'][0] }}{{ m['content'] }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<start>a{% if not thinking | default(true) %}##{% endif %}{% endif %}"
)


def chatml() -> Any:
    """Return a tokenizer whose turns end with another token than a text."""
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<start>", "<end>"]})
    tokenizer.chat_template = CHATML
    return tokenizer


def without_template() -> Any:
    """Return a tokenizer without a chat template."""
    tokenizer = build_tokenizer()
    tokenizer.chat_template = None
    return tokenizer


def without_system() -> Any:
    """Return a tokenizer whose template leaves system messages out."""
    tokenizer = chatml()
    tokenizer.chat_template = CHATML.replace("in messages", "in messages if m['role'] != 'system'")
    return tokenizer


def refusing_system() -> Any:
    """Return a tokenizer whose template raises at a system message, as Gemma's does."""
    tokenizer = chatml()
    refusal = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    tokenizer.chat_template = refusal + CHATML
    return tokenizer


_THINKING = """
{%- set last = namespace(query=-1) %}
{%- for message in messages if message['role'] == 'user' %}{% set last.query = loop.index0 %}{% endfor %}
{%- set seen = namespace(users=-1) %}
{%- for message in messages %}
  {%- if message['role'] == 'user' %}{% set seen.users = seen.users + 1 %}{% endif %}
  {{- '<|im_start|>' + message['role'] + '\\n' }}
  {%- if message['role'] == 'assistant' and '</think>' in message['content'] and not preserve_thinking %}
    {%- set thought = message['content'].split('</think>')[0].split('<think>')[-1].strip('\\n') %}
    {%- if seen.users == last.query and thought %}{{ '<think>\\n' + thought + '\\n</think>\\n\\n' }}{% endif %}
    {{- message['content'].split('</think>')[-1].lstrip('\\n') }}
  {%- else %}{{ message['content'] }}{% endif %}
  {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""Template with the rules of Qwen3's: thoughts before the last message of the user are left out, and those after it are
written in one form. ``preserve_thinking`` leaves all turns as they are."""


def thinking(*, keeps: bool) -> Any:
    """Return a tokenizer of byte pairs for a model that thinks; its template strips earlier thoughts, or keeps them."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    pairs = ByteLevelBPETokenizer()
    pairs.train_from_iterator(["the answer is twelve thirty and the thought is to add the numbers"] * 4, 320, 2)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pairs._tokenizer, eos_token="<|im_end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.chat_template = "{% set preserve_thinking = true %}" + _THINKING if keeps else _THINKING
    return tokenizer

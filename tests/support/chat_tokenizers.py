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

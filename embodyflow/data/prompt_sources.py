"""Which prompts a configuration means."""

from typing import Any

from embodyflow.data.arithmetic import ArithmeticPrompts
from embodyflow.data.prompt_configuration import PromptConfig
from embodyflow.data.prompts import PromptSource


def build_prompt_source(config: PromptConfig, tokenizer: Any, max_prompt_tokens: int) -> PromptSource:
    """Build the source of prompts.

    Args:
        config: chooses it.
        tokenizer: of ``transformers``; says how long a prompt is.
        max_prompt_tokens: limit of a prompt.
    """
    return ArithmeticPrompts(config)

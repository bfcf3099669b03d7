"""Checks that the prompts of a language job fit its reward function and its tokenizer."""

from collections.abc import Mapping
from typing import Any

from embodyflow.config.language import LanguageConfig
from embodyflow.errors import ConfigError
from embodyflow.prompts.prompt_config import RowsConfig
from embodyflow.prompts.prompts import PromptSource, Split

_MARK = "the-system-message"
_GRADED: tuple[Split, ...] = ("train", "validation")


def check_sources(config: LanguageConfig, source: PromptSource) -> None:
    """Check that each dataset that the rows name has a reward function.

    Raises:
        ConfigError: A dataset has none.
    """
    if not isinstance(config.data, RowsConfig) or config.reward.function is None:
        return
    names = {
        source.prompt(split, index).data_source: None for split in _GRADED for index in range(source.num_prompts(split))
    }
    try:
        config.reward.check_sources(list(names))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def check_chat_template(config: LanguageConfig, source: PromptSource) -> None:
    """Check that the tokenizer has a chat template if prompts are chats, and that it writes their system messages.

    Raises:
        ConfigError: It has none, leaves system messages out or refuses them, or the tokenizer cannot be loaded.
    """
    if not isinstance(config.data, RowsConfig) or not config.data.has_chats:
        return
    from embodyflow.policies.language.causal_lm.tokenizer_causal_lm import build_tokenizer

    name = config.policy.tokenizer or config.policy.path
    key = "policy.tokenizer" if config.policy.tokenizer else "policy.path"
    try:
        tokenizer = build_tokenizer(config.policy)
    except (OSError, ValueError) as error:
        first = str(error).strip().partition("\n")[0]
        raise ConfigError(f"{key}={name}: its tokenizer cannot be loaded: {first}") from error
    if not getattr(tokenizer, "chat_template", None):
        data = config.data
        column = "messages_column" if data.messages_column else "demo_messages_column"
        chat = "data.chat=true" if data.chat else f"data.{column}={getattr(data, column)}"
        raise ConfigError(
            f"{chat}: the tokenizer of {key}={name} has no chat template; allowed are a policy.tokenizer with one, and "
            "prompts of plain text (data.template with data.chat=false)"
        )
    place = _first_system_message(source)
    if place is not None and (reason := _why_no_system(tokenizer, config.data.chat_template_kwargs)) is not None:
        raise ConfigError(
            f"{place}: the prompt has a system message, which the chat template of {key}={name} {reason}; allowed are "
            "another policy.tokenizer, and prompts without system messages"
        )


def _first_system_message(source: PromptSource) -> str | None:
    """Return the place of the first prompt that has a system message."""
    for split in _GRADED:
        for index in range(source.num_prompts(split)):
            if any(message["role"] == "system" for message in source.prompt(split, index).messages or ()):
                return source.place(split, index)
    return None


def _why_no_system(tokenizer: Any, kwargs: Mapping[str, Any]) -> str | None:
    """Return a clause about a chat template that does not write a system message; ``None`` if it writes it."""
    messages = [{"role": "system", "content": _MARK}, {"role": "user", "content": "?"}]
    options = {**kwargs, "add_generation_prompt": True, "tokenize": False}
    try:
        text = str(tokenizer.apply_chat_template(messages, **options))
    except Exception as error:  # a template may raise anything
        return f"refuses: {' '.join(str(error).split())}"
    return None if _MARK in text else "leaves out"

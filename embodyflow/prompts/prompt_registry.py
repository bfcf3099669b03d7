"""Which prompts a configuration means."""

from typing import Any, assert_never

from embodyflow.errors import ConfigError
from embodyflow.prompts.arithmetic import ArithmeticPrompts
from embodyflow.prompts.prompt_config import ArithmeticConfig, PromptConfig, RowsConfig
from embodyflow.prompts.prompts import PromptSource


def build_prompt_source(config: PromptConfig, tokenizer: Any, max_prompt_tokens: int) -> PromptSource:
    """Build the source of all prompts.

    Args:
        config: chooses it.
        tokenizer: of ``transformers``; says how long a prompt is. ``None`` does not ask, so that a configuration can
            be checked without one.
        max_prompt_tokens: limit of a prompt.

    Raises:
        ConfigError: files cannot be read, or hold what they should not; the message names file and row.
    """
    match config:
        case ArithmeticConfig():
            return ArithmeticPrompts(config)
        case RowsConfig():
            _check_library()
            from embodyflow.prompts.prompt_files import RowPrompts

            return RowPrompts(config, tokenizer, max_prompt_tokens)
        case _:
            assert_never(config)


def _check_library() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ConfigError("data.name=rows: pyarrow is not installed; pip install 'embodyflow[data]'") from error

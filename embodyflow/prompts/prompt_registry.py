"""The prompt source of each configuration."""

from typing import Any, assert_never

from embodyflow.errors import ConfigError
from embodyflow.prompts.arithmetic import ArithmeticPrompts
from embodyflow.prompts.calculator import CalculatorPrompts
from embodyflow.prompts.few_shot_sums import FewShotSumsPrompts
from embodyflow.prompts.prompt_config import (
    ArithmeticConfig,
    CalculatorConfig,
    FewShotSumsConfig,
    PromptConfig,
    ReasoningGymConfig,
    RowsConfig,
    SeedsConfig,
    SelfCorrectConfig,
    VerifiersTasksConfig,
)
from embodyflow.prompts.prompts import PromptSource
from embodyflow.prompts.reasoning_gym import ReasoningGymPrompts
from embodyflow.prompts.seeds import SeedPrompts
from embodyflow.prompts.self_correct import SelfCorrectPrompts
from embodyflow.prompts.verifiers.verifiers_prompts import VerifiersPrompts


def build_prompt_source(config: PromptConfig, tokenizer: Any, max_prompt_tokens: int) -> PromptSource:
    """Build a prompt source with all rows of all splits.

    Args:
        config: Configuration of the prompts.
        tokenizer: Tokenizer of ``transformers`` that measures prompts; ``None`` skips checks of length, so that a
            configuration can be checked without a tokenizer.
        max_prompt_tokens: Maximum number of tokens of a prompt.

    Raises:
        ConfigError: A file cannot be read, or a row is invalid; the message names file and row.
    """
    match config:
        case ArithmeticConfig():
            return ArithmeticPrompts(config)
        case FewShotSumsConfig():
            return FewShotSumsPrompts(config)
        case CalculatorConfig():
            return CalculatorPrompts(config)
        case SelfCorrectConfig():
            return SelfCorrectPrompts(config)
        case SeedsConfig():
            return SeedPrompts(config)
        case ReasoningGymConfig():
            return ReasoningGymPrompts(config)
        case VerifiersTasksConfig():
            return VerifiersPrompts(config)
        case RowsConfig():
            _check_library()
            from embodyflow.prompts.files.prompt_files import RowPrompts

            return RowPrompts(config, tokenizer, max_prompt_tokens)
        case _:
            assert_never(config)


def _check_library() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ConfigError("data.name=rows: pyarrow is not installed; pip install 'embodyflow[data]'") from error

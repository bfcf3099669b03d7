"""Tokenizers and padding of prompts, for policies whose language model reads the instruction."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embodyflow.errors import ConfigError
from embodyflow.policies.pretrained.configuration import PretrainedConfig
from embodyflow.references import resolve


def load_tokenizer(config: PretrainedConfig, folder: Path | None) -> Any:
    """Return the ``transformers`` tokenizer that is configured, else the one in the checkpoint's folder."""
    from transformers import PreTrainedTokenizerFast  # seconds to import

    name = config.tokenizer or str(folder)
    if config.tokenizer and ":" in name:
        return resolve(name)()
    # AutoTokenizer would ask at the terminal whether to run code that comes with the checkpoint.
    return PreTrainedTokenizerFast.from_pretrained(name)


def padding_of(ids: Sequence[int], length: int, instruction: str) -> list[int]:
    """Return the zeros that pad a prompt's tokens to ``length``.

    Raises:
        ConfigError: The prompt is longer.
    """
    if len(ids) > length:
        raise ConfigError(f"policy.max_prompt_tokens={length}: must be at least {len(ids)} for {instruction!r}")
    return [0] * (length - len(ids))

"""Tokenizers and prompts of policies whose language model reads the instruction."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embodyflow.errors import ConfigError
from embodyflow.policies.pretrained import PretrainedConfig
from embodyflow.references import resolve


def load_tokenizer(config: PretrainedConfig, folder: Path | None) -> Any:
    """Return the tokenizer, of ``transformers``: the one configured, else the one in the checkpoint's folder."""
    from transformers import PreTrainedTokenizerFast  # seconds to import

    name = config.tokenizer or str(folder)
    if config.tokenizer and ":" in name:
        return resolve(name)()
    # AutoTokenizer would ask at the terminal whether to run the code that published checkpoints come with.
    return PreTrainedTokenizerFast.from_pretrained(name)


def padding_of(ids: Sequence[int], length: int, instruction: str) -> list[int]:
    """Return the padding, zeros, that a prompt's tokens lack of ``length``.

    Raises:
        ConfigError: the prompt is longer.
    """
    if len(ids) > length:
        raise ConfigError(f"policy.max_prompt_tokens={length}: must be at least {len(ids)} for {instruction!r}")
    return [0] * (length - len(ids))

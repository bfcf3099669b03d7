"""Prompts of policies that denoise, and a tokenizer for models of random weights."""

from typing import Any

import numpy as np

from embodyflow.policies.pretrained.tokenizers import padding_of


def prompt_ids(tokenizer: Any, instruction: str, length: int, first: int | None = None) -> np.ndarray:
    """Return the tokens of the instruction and a line end, int64 ``[length]``, padded by 0.

    Args:
        tokenizer: Tokenizer of ``transformers``.
        instruction: Instruction, with or without a line end.
        length: Tokens of the longest prompt.
        first: Token that prompts must begin with, even if the tokenizer's files do not add it.

    Raises:
        ConfigError: The prompt is longer.
    """
    ids = begun(tokenizer, instruction.removesuffix("\n") + "\n", first)
    return np.array(ids + padding_of(ids, length, instruction), np.int64)


def begun(tokenizer: Any, text: str, first: int | None) -> list[int]:
    """Return the tokens of a text, with ``first`` in front, even if the tokenizer's files do not add it."""
    ids: list[int] = tokenizer(text)["input_ids"]
    return ids if first is None or ids[:1] == [first] else [first, *ids]


def build_tokenizer() -> Any:
    """Build a tokenizer without files: each ASCII character is a token, and so is the line end."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast  # seconds to import

    words = ("<pad>", "<unk>", "\n", *map(chr, range(32, 127)))
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>")

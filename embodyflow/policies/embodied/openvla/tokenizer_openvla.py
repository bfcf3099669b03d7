"""Prompts of OpenVLA, and a tokenizer for models of random weights."""

from typing import Any

import numpy as np

from embodyflow.policies.pretrained.tokenizers import padding_of

BEFORE, AFTER = "In: What action should the robot take to ", "?\nOut:"
SPACE = "▁"
"""Last word before an action in the training of published models: 29871 in Llama's vocabulary."""


def prompt_ids(tokenizer: Any, instruction: str, length: int) -> np.ndarray:
    """Return the prompt's tokens after ``<s>`` and the image, int64 ``[length]``, padded by 0 in front.

    Raises:
        ConfigError: The prompt is longer.
    """
    text = f"{BEFORE}{instruction.lower()}{AFTER}"
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    space = tokenizer.convert_tokens_to_ids(SPACE)
    if ids[-1] != space:
        ids = [*ids, space]
    return np.array(padding_of(ids, length, instruction) + ids, np.int64)


def build_tokenizer() -> Any:
    """Build a tokenizer without files: the template's two halves are tokens, and so is each ASCII character.

    Special tokens have Llama's ids.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast  # seconds to import

    words = ("<unk>", "<s>", "</s>", SPACE, BEFORE, AFTER, *map(chr, range(32, 127)))
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    template = f"{BEFORE}|{AFTER.replace('?', '[?]')}|."
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(template), "isolated")
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<unk>"
    )

"""A tokenizer whose tokens are given words and characters, for models that need no download."""

from collections.abc import Sequence
from typing import Any

PAD, BOS, UNKNOWN = "<pad>", "<bos>", "<unk>"


def word_tokenizer(
    words: Sequence[str], *, end: str, chat_template: str, roles: Sequence[str] = (), begins: bool = False
) -> Any:
    """Build a ``transformers.PreTrainedTokenizerFast``.

    Every character outside the longer words is a token of its own, and decoding returns exactly the text that was
    encoded. ``AutoTokenizer`` and vLLM can load the folder that ``save_pretrained(folder)`` writes.

    Args:
        words: Words and characters, spaces included.
        end: Special token that ends a response.
        chat_template: Template of chats.
        roles: Further special tokens, such as those that begin a message.
        begins: Whether the tokenizer puts ``<bos>`` before a text; otherwise the template does.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast  # takes seconds to import, and prompts do not need it

    special = (PAD, BOS, end, UNKNOWN, *roles)
    vocabulary = {word: number for number, word in enumerate((*special, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    longer = sorted((word for word in words if len(word) > 1), key=len, reverse=True)
    pattern = "|".join([*(_escaped(word) for word in longer), "."])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing(f"{BOS} $A", special_tokens=[(BOS, vocabulary[BOS])])
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=end,
        unk_token=UNKNOWN,
        additional_special_tokens=list(roles),
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=chat_template,
    )


def _escaped(word: str) -> str:
    return "".join(letter if letter.isalnum() or letter in ' _<>":,' else f"\\{letter}" for letter in word)

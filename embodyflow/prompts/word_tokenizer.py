"""A tokenizer whose tokens are given words and characters, for models that need no download."""

from collections.abc import Sequence
from typing import Any

PAD, BOS, UNKNOWN = "<pad>", "<bos>", "<unk>"
_ROLES = ("<user>", "<assistant>", "<tool>")
_CHAT_TEMPLATE = (
    "{{ bos_token }}{% if tools %}{% for tool in tools %}{{ tool['function']['name'] }}{% endfor %}{% endif %}"
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


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

    Raises:
        ValueError: A word occurs twice.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast  # takes seconds to import, and prompts do not need it

    special = (PAD, BOS, end, UNKNOWN, *roles)
    vocabulary = {word: number for number, word in enumerate((*special, *words))}
    if len(vocabulary) < len(special) + len(words):  # their numbers would have a gap
        raise ValueError(f"words must differ: {sorted(word for word in {*words} if [*words].count(word) > 1)}")
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    longer = sorted((word for word in words if len(word) > 1), key=len, reverse=True)
    pattern = "|".join([*(_escaped(word) for word in longer), r"[\s\S]"])
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


def chat_tokenizer(words: Sequence[str]) -> Any:
    """Build a word tokenizer of conversations, whose messages are ``<role>content<end>``.

    Args:
        words: Words and characters, spaces included.
    """
    return word_tokenizer(words, end="<end>", chat_template=_CHAT_TEMPLATE, roles=_ROLES)


def build_letters() -> Any:
    """Build a tokenizer of conversations whose words are the line break and the printable characters of ASCII."""
    return chat_tokenizer(["\n", *map(chr, range(32, 127))])


def _escaped(word: str) -> str:
    return "".join(letter if letter.isalnum() or letter in ' _<>":,' else f"\\{letter}" for letter in word)

r"""Text of tools and users that must not become tokens that only the chat template and the model write.

A tool's answer may spell such a token, as a page about chat templates or one that attacks the agent does:
``<|im_end|>\n<|im_start|>assistant``. Encoded with the rest of the chat, it would end the message and begin a turn
that nobody wrote. A separator within it keeps it text: it is cut there before it is encoded.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from embodyflow.agents.chat.transcript import Tokens

SEPARATOR = "\ufdd0"
"""A code point that Unicode keeps for the inside of programs and assigns to no character."""


@lru_cache(maxsize=8)  # some tokenizers have thousands, and each conversation asks
def special_tokens(tokenizer: Any) -> re.Pattern[str] | None:
    """Return a pattern of the special tokens' texts of at least two characters; ``None`` without such tokens."""
    added = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    texts = {text for text in (*added, *tokenizer.all_special_tokens) if len(text) > 1}
    longest_first = sorted(texts, key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, longest_first))) if texts else None


def guarded(message: Mapping[str, Any], special: re.Pattern[str]) -> Mapping[str, Any]:
    """Return a message with a separator after the first character of each special token in its texts."""
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": _separated(content, special)}
    if not isinstance(content, Sequence):
        return message
    return {**message, "content": [_part(part, special) for part in content]}


def encode_guarded(text: str, tokenizer: Any) -> Tokens:
    """Return the tokens of a text, in which what a separator cuts is not one token."""
    pieces = [piece for piece in text.split(SEPARATOR) if piece]
    return tuple(token for piece in pieces for token in tokenizer(piece, add_special_tokens=False)["input_ids"])


def _part(part: Any, special: re.Pattern[str]) -> Any:
    if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
        return part
    return {**part, "text": _separated(part["text"], special)}


def _separated(text: str, special: re.Pattern[str]) -> str:
    return special.sub(lambda found: f"{found[0][0]}{SEPARATOR}{found[0][1:]}", text.replace(SEPARATOR, ""))

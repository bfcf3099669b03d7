"""Strings that end a completion."""

from collections.abc import Sequence
from functools import partial

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class StopStrings:
    """Follows one completion token by token.

    Args:
        strings: that end it.
        tokenizer: of the model.
    """

    def __init__(self, strings: Sequence[str], tokenizer: Tokenizer) -> None:
        self._strings, self._text = strings, ""
        # A string may start in text seen before the last token; no longer part of the text is needed.
        self._overlap = max(map(len, strings)) - 1
        self._decode = partial(DecodeStream(skip_special_tokens=False).step, tokenizer)

    def is_completed_by(self, token: int) -> bool:
        """Take the next token; return whether the text has one of the strings now."""
        # None while the bytes so far are no whole character.
        text = self._text + (self._decode(token) or "")
        self._text = text[len(text) - self._overlap :] if self._overlap < len(text) else text
        return any(string in text for string in self._strings)

"""Stop strings, which end a completion."""

from collections.abc import Sequence
from functools import partial

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class StopStrings:
    """Searches one completion for stop strings, token by token.

    Args:
        strings: Strings that end the completion.
        tokenizer: Tokenizer of the model.
    """

    def __init__(self, strings: Sequence[str], tokenizer: Tokenizer) -> None:
        self._strings, self._text = strings, ""
        # A stop string may start before the last token, but needs no more than this many earlier characters.
        self._overlap = max(map(len, strings)) - 1
        self._decode = partial(DecodeStream(skip_special_tokens=False).step, tokenizer)

    def is_completed_by(self, token: int) -> bool:
        """Append the next token; return True if the text now contains one of the strings."""
        # The decoder returns None until it has all bytes of a character.
        text = self._text + (self._decode(token) or "")
        self._text = text[len(text) - self._overlap :] if self._overlap < len(text) else text
        return any(string in text for string in self._strings)

"""When a completion ends."""

from functools import partial

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from embodyflow.engines.generation.interface import FinishReason, Sampling


class StopCheck:
    """Follows one completion token by token.

    Args:
        sampling: says what ends it.
        tokenizer: of the model; ``None`` where there are no stop strings.
    """

    def __init__(self, sampling: Sampling, tokenizer: Tokenizer | None) -> None:
        self._sampling = sampling
        self._num_tokens, self._text = 0, ""
        # A string may start in text seen before the last token; no longer part of the text is needed.
        self._overlap = max((len(stop) for stop in sampling.stop), default=1) - 1
        self._decode = None if tokenizer is None else partial(DecodeStream(skip_special_tokens=False).step, tokenizer)

    def finish_reason(self, token: int) -> FinishReason | None:
        """Take the next token; return why the completion ends with it, ``None`` if it goes on."""
        self._num_tokens += 1
        if token in self._sampling.stop_token_ids or self._completes_a_string(token):
            return "stop"
        return "length" if self._num_tokens == self._sampling.max_tokens else None

    def _completes_a_string(self, token: int) -> bool:
        if self._decode is None:
            return False
        # None while the bytes so far are no whole character.
        text = self._text + (self._decode(token) or "")
        self._text = text[len(text) - self._overlap :] if self._overlap < len(text) else text
        return any(stop in text for stop in self._sampling.stop)

"""Turns that end at stop strings."""

from dataclasses import replace
from typing import Any

from embodyflow.agents.chat.conversation import Model
from embodyflow.agents.chat.transcript import Tokens
from embodyflow.generation.interface import Completion, FinishReason
from embodyflow.generation.stopping import StopStrings


class StoppingModel:
    """Implements :class:`~embodyflow.agents.chat.conversation.Model`: each turn ends at the first of its stop strings.

    The engine samples beyond a stop string, and the tokens after it are dropped. Which tokens remain depends on those
    tokens alone, so they have the distribution of an engine that stops there.

    Args:
        model: Model that samples.
        tokenizer: Tokenizer of the model.

    Attributes:
        stop: Strings that end the next turn.
        completion: The last turn, as far as it counts; ``None`` before the first.
        text: Its text, special tokens included, without the stop string or the token that ended it.
        is_cut: True if a stop string ended it.
        num_prompt_tokens: Number of tokens that it continues.
    """

    def __init__(self, model: Model, tokenizer: Any) -> None:
        self._model, self._tokenizer = model, tokenizer
        self.stop: tuple[str, ...] = ()
        self.completion: Completion | None = None
        self.text, self.is_cut, self.num_prompt_tokens = "", False, 0

    async def generate(self, prompt_ids: Tokens, max_tokens: int) -> Completion:
        """Sample a completion of at most ``max_tokens`` tokens."""
        completion = await self._model.generate(prompt_ids, max_tokens)
        length = self._length(completion.token_ids)
        self.is_cut, self.num_prompt_tokens = length is not None, len(prompt_ids)
        if length is None:
            written = completion.token_ids[:-1] if completion.finish_reason == "stop" else completion.token_ids
            self.completion, self.text = completion, self._decode(written)
        else:
            tokens = completion.token_ids[:length]
            # No token of its own ends the turn, so to the conversation it is like one that a limit cut.
            self.completion = replace(
                completion,
                token_ids=tokens,
                log_probs=completion.log_probs[:length],
                versions=completion.versions[:length],
                finish_reason="length",
            )
            text = self._decode(tokens)
            self.text = text[: min(place for place in map(text.find, self.stop) if place >= 0)]
        return self.completion

    @property
    def finish_reason(self) -> FinishReason:
        """Reason why the last turn ended, to the program."""
        assert self.completion is not None
        return "stop" if self.is_cut else self.completion.finish_reason

    def _length(self, tokens: Tokens) -> int | None:
        """Return the number of tokens up to the one that completes a stop string; ``None`` without a stop string."""
        if not self.stop:
            return None
        search = StopStrings(self.stop, self._tokenizer.backend_tokenizer)
        return next((number for number, token in enumerate(tokens, 1) if search.is_completed_by(token)), None)

    def _decode(self, tokens: Tokens) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=False)
        return text

"""A chat of the model, as the tokens that were sampled and given."""

from collections.abc import Sequence
from typing import Any, Protocol

from embodyflow.agents.chat_format import ChatFormat, Message
from embodyflow.agents.episode import Episode, EpisodeContext
from embodyflow.agents.transcript import Origin, Tokens, Transcript
from embodyflow.generation.interface import Completion
from embodyflow.prompts.prompts import Prompt


class Model(Protocol):
    """The model as a conversation sees it."""

    async def generate(self, prompt_ids: Tokens, max_tokens: int) -> Completion:
        """Sample a completion of at most ``max_tokens`` tokens."""


class Conversation:
    """A chat that only grows, so each turn of the model continues exactly the tokens of the turns before.

    Args:
        model: Model that writes the assistant's turns.
        prompt: Prompt, a chat.
        format: Encoding of messages.
        tokenizer: Tokenizer of the model.
        max_tokens: Most tokens after the prompt, of all turns and messages.
        context: Context of the episode.
    """

    def __init__(
        self, model: Model, prompt: Prompt, format: ChatFormat, tokenizer: Any, max_tokens: int, context: EpisodeContext
    ) -> None:
        self._model, self._prompt, self._format, self._tokenizer = model, prompt, format, tokenizer
        self._max_tokens, self._context = max_tokens, context
        self.transcript = Transcript(format.begin(prompt))
        self.finished = False

    @property
    def room(self) -> int:
        """Number of tokens that still fit."""
        return self._max_tokens - self.transcript.num_new_tokens

    async def reply(self, max_tokens: int | None = None) -> str:
        """Let the model write its next turn; return its text with special tokens, without the one that ended it.

        Args:
            max_tokens: Most tokens of the turn; ``None`` means as many as fit.

        Raises:
            ValueError: No token fits; :attr:`room` tells it before.
        """
        if self.room < 1:
            raise ValueError(f"rollout.max_response_tokens={self._max_tokens}: the episode has no room for a turn")
        limit = self.room if max_tokens is None else min(self.room, max_tokens)
        completion = await self._model.generate(self.transcript.tokens, limit)
        self.transcript.append_sampled(completion)
        self._context.counts.turns += 1
        self.finished = completion.finish_reason == "stop"
        written = completion.token_ids[:-1] if self.finished else completion.token_ids
        text: str = self._tokenizer.decode(written, skip_special_tokens=False)
        return text

    def give(self, role: str, contents: Sequence[str]) -> bool:
        """Append messages of a role, such as the answers of tools; see :meth:`give_messages`."""
        return self.give_messages([{"role": role, "content": content} for content in contents])

    def give_messages(self, messages: Sequence[Message]) -> bool:
        """Append messages after a turn of the model.

        Returns:
            False if they and a further token of the model do not fit; the episode is then cut here.
        """
        end, tokens = self._format.go_on(self._prompt, messages, self.transcript.tokens)
        if len(end) + len(tokens) >= self.room:
            self.finished = False
            return False
        self.transcript.append_given(end, Origin.TEMPLATE)
        self.transcript.append_given(tokens, Origin.TOOL if messages[-1]["role"] == "tool" else Origin.USER)
        return True

    def episode(self, reward: float | None = None, success: bool | None = None) -> Episode:
        """Return the episode as it is now; arguments as in :class:`~embodyflow.agents.episode.Episode`."""
        return Episode(self.transcript, self.finished, reward, success)

"""A chat of the model, as the tokens that were sampled and given."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from embodyflow.agents.chat.chat_format import ChatFormat, Continuation, Message
from embodyflow.agents.chat.foreign_text import SEPARATOR
from embodyflow.agents.chat.transcript import Origin, Tokens, Transcript
from embodyflow.agents.episode import Episode, EpisodeContext
from embodyflow.generation.interface import Completion
from embodyflow.prompts.prompts import Prompt


class Model(Protocol):
    """The model as a conversation sees it."""

    async def generate(self, prompt_ids: Tokens, max_tokens: int) -> Completion:
        """Sample a completion of at most ``max_tokens`` tokens."""


class Conversation:
    """A chat in which each turn of the model continues exactly the tokens that it has seen.

    Where the chat template changes earlier text, the next turn begins a new context of the episode with the whole chat
    as the template renders it now.

    Args:
        model: Model that writes the assistant's turns.
        prompt: Prompt, a chat.
        format: Encoding of messages.
        max_tokens: Most tokens of the episode after its prompt, of all conversations, turns and messages.
        context: Context of the episode.
        transcript: Tokens of the episode. The first conversation's prompt is that of the episode. The prompt of a
            further one begins a context and counts as given tokens.
        agent: Name of the agent whose conversation it is.
    """

    def __init__(
        self,
        model: Model,
        prompt: Prompt,
        format: ChatFormat,
        max_tokens: int,
        context: EpisodeContext,
        transcript: Transcript,
        agent: str = "",
    ) -> None:
        self._model, self._prompt, self._format = model, prompt, format
        self._max_tokens, self._context, self._agent = max_tokens, context, agent
        self._messages: list[Message] = []
        self._turn = ""
        self._context_number = 0
        self._given: tuple[Continuation, Origin] | None = None
        self.transcript = transcript
        self.finished = False
        self._text = format.text(prompt)
        if transcript.num_contexts:
            opening = Continuation(self._text, (), format.encode(self._text), begins_context=True)
            self._given = opening, Origin.TEMPLATE
        else:
            transcript.begin(format.begin(prompt), agent)

    @property
    def room(self) -> int:
        """Number of tokens that still fit; below 1 if a further conversation's prompt leaves no room for a turn."""
        given = 0 if self._given is None else len(self._given[0].end) + len(self._given[0].tokens)
        return self._max_tokens - self.transcript.num_new_tokens - given

    @property
    def text_before(self) -> str:
        """Text of the chat template before the model's last turn, or before its next one if it has not begun."""
        return self._text.replace(SEPARATOR, "")

    async def reply(self, max_tokens: int | None = None) -> str:
        """Let the model write its next turn; return its text with special tokens, without the one that ended it.

        Args:
            max_tokens: Most tokens of the turn; ``None`` means as many as fit.

        Raises:
            ValueError: No token fits; :attr:`room` tells it before.
        """
        if self.room < 1:
            raise ValueError(f"rollout.max_response_tokens={self._max_tokens}: the episode has no room for a turn")
        self._read()
        limit = self.room if max_tokens is None else min(self.room, max_tokens)
        completion = await self._model.generate(self.transcript.tokens_of(self._context_number), limit)
        self.transcript.append_sampled(completion, self._context_number)
        self._context.counts.turns += 1
        self.finished = completion.finish_reason == "stop"
        written = completion.token_ids[:-1] if self.finished else completion.token_ids
        self._turn = self._format.decode(written)
        self._messages.append({"role": "assistant", "content": self._turn})
        return self._turn

    def give(self, role: str, contents: Sequence[str]) -> bool:
        """Append messages of a role, such as the answers of tools; see :meth:`give_messages`."""
        return self.give_messages([{"role": role, "content": content} for content in contents])

    def give_messages(self, messages: Sequence[Message]) -> bool:
        """Append messages after a turn of the model.

        Returns:
            False if they and a further token of the model do not fit; the episode is then cut here.

        Raises:
            ValueError: The model has not written a turn since the last messages.
        """
        if self._given is not None or not self._messages:
            raise ValueError("messages must follow a turn of the model; give all of them in one call")
        whole = [*self._messages, *messages]
        before = self.transcript.tokens_of(self._context_number)
        given = self._format.go_on(self._prompt, whole, self._text, self._turn, before)
        if len(given.end) + len(given.tokens) >= self.room:
            self.finished = False
            return False
        self._messages = whole
        self._given = given, Origin.TOOL if messages[-1]["role"] == "tool" else Origin.USER
        return True

    def episode(
        self,
        reward: float | None = None,
        success: bool | None = None,
        turn_rewards: Sequence[float] = (),
        agent_rewards: Mapping[str, float] | None = None,
    ) -> Episode:
        """Return the episode as it is now; arguments as in :class:`~embodyflow.agents.episode.Episode`."""
        return Episode(self.transcript, self.finished, reward, success, tuple(turn_rewards), agent_rewards)

    def _read(self) -> None:
        """Append the given tokens, which the model reads with its next turn."""
        if self._given is None:
            return
        given, origin = self._given
        self._given, self._text = None, given.text
        if given.begins_context:
            self._context_number = self.transcript.begin(given.tokens, self._agent)
        else:
            self.transcript.append_given(given.end, Origin.TEMPLATE, self._context_number)
            self.transcript.append_given(given.tokens, origin, self._context_number)

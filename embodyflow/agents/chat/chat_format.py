"""Tokens of chat messages that follow the model's turns, without encoding these turns again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jinja2 import TemplateError

from embodyflow.agents.chat.chat_memory import ChatMemory, digest_of
from embodyflow.agents.chat.foreign_text import SEPARATOR, encode_guarded, guarded, special_tokens
from embodyflow.agents.chat.transcript import Tokens
from embodyflow.errors import ConfigError
from embodyflow.prompts.prompts import Prompt, checked_length, encode, end_of_response

Message = Mapping[str, Any]

TOOL_ROLES = ("tool", "function")
"""Roles of messages that tools write."""
FOREIGN_ROLES = ("user", *TOOL_ROLES)
"""Roles of messages that come while an agent plays, from environments, programs and tools."""


@dataclass(frozen=True)
class Continuation:
    """Tokens that lead from the model's turn to its next one.

    Attributes:
        text: Chat template's text of the whole chat, up to the start of the next turn.
        end: Tokens that end the last turn, none if the model wrote them or a new context begins.
        tokens: Tokens of the messages and of the start of the next turn, or of the whole chat in a new context.
        begins_context: True if the template changes what the model has read so far, so a new context begins.
    """

    text: str
    end: Tokens
    tokens: Tokens
    begins_context: bool


class ChatFormat:
    """Encodes messages by the chat template of a tokenizer.

    Encoding a whole chat again may change earlier turns: another way to cut a text into tokens gives other ids. So only
    the text that the template puts after a turn is encoded, and appended to the tokens that were sampled. Where the
    template changes earlier text, such as one that leaves out earlier thoughts, nothing can be appended.

    Args:
        tokenizer: Tokenizer of ``transformers`` with a chat template.
        tools: Schemas of the tools that the template describes to the model.
        max_prompt_tokens: Most tokens of a prompt.
        memory: Texts and tokens that other episodes with this tokenizer asked for; ``None`` begins with none.
    """

    def __init__(
        self,
        tokenizer: Any,
        tools: Sequence[Mapping[str, Any]],
        max_prompt_tokens: int,
        memory: ChatMemory | None = None,
    ) -> None:
        self._tokenizer, self._max_prompt_tokens = tokenizer, max_prompt_tokens
        self._options: dict[str, Any] = {"tools": list(tools)} if tools else {}
        self._memory = memory or ChatMemory()
        self._special = special_tokens(tokenizer)
        self._known: tuple[Prompt, object] | None = None  # the last prompt and its facts; a conversation has one prompt

    def with_tools(self, prompt: Prompt) -> Prompt:
        """Return a prompt whose template also gets the tools."""
        return replace(prompt, template_kwargs={**prompt.template_kwargs, **self._options})

    def begin(self, prompt: Prompt) -> Tokens:
        """Return the tokens of a prompt, up to the start of the model's turn.

        Raises:
            PromptTooLongError: The prompt has more than ``max_prompt_tokens`` tokens.
        """
        return self._memory.recall(
            lambda: self._beginning(prompt), "begin", self._max_prompt_tokens, self._facts(prompt)
        )

    def text(self, prompt: Prompt, messages: Sequence[Message] = ()) -> str:
        """Return the template's text of a prompt and further messages, up to the start of the model's turn."""
        return self._memory.recall(lambda: self._render(prompt, messages), "text", self._facts(prompt), messages)

    def encode(self, text: str) -> Tokens:
        """Return the tokens of a template's text."""
        return self._memory.recall(lambda: self._tokens(text), "encode", text)

    def decode(self, tokens: Tokens) -> str:
        """Return the text of tokens, with special tokens."""
        return self._memory.recall(lambda: self._text(tokens), "decode", tokens)

    def go_on(
        self, prompt: Prompt, messages: Sequence[Message], before: str, turn: str, tokens: Tokens
    ) -> Continuation:
        """Return the tokens that follow the model's turn.

        They extend the tokens so far if the template's text of the chat begins with its text before the turn, followed
        by the turn. Whitespace at the ends of a turn, which some templates strip, does not count.

        Args:
            prompt: Prompt of the conversation.
            messages: All messages after the prompt: the model's turns, and those after the last one.
            before: Template's text of the chat up to the start of the last turn.
            turn: Text of the last turn.
            tokens: All tokens of the context, up to the end of the last turn.
        """
        whole = self.text(prompt, messages)
        rest = _after(turn, whole[len(before) :]) if whole.startswith(before) else None
        if rest is None:
            return Continuation(whole, (), self.encode(whole), begins_context=True)
        following = self.encode(rest)
        end = self._end(prompt)
        if following[: len(end)] != end:  # the template ends a turn amid a chat otherwise than the last one
            return Continuation(whole, (), following, begins_context=False)
        is_written = tokens[-len(end) :] == end
        return Continuation(whole, () if is_written else end, following[len(end) :], begins_context=False)

    def _end(self, prompt: Prompt) -> Tokens:
        return self._memory.recall(
            lambda: end_of_response(self.with_tools(prompt), self._tokenizer), "end", self._facts(prompt)
        )

    def _facts(self, prompt: Prompt) -> object:
        """Return everything of a prompt that its tokens depend on, as a digest if there is one."""
        if self._known is None or self._known[0] is not prompt:
            facts = prompt.text, prompt.messages, {**prompt.template_kwargs, **self._options}
            self._known = prompt, digest_of(facts) or facts
        return self._known[1]

    def _beginning(self, prompt: Prompt) -> Tokens:
        text = self.text(prompt)
        if SEPARATOR not in text:
            return encode(self.with_tools(prompt), self._tokenizer, self._max_prompt_tokens)
        return checked_length(prompt, self._tokens(text), self._max_prompt_tokens)

    def _render(self, prompt: Prompt, messages: Sequence[Message]) -> str:
        options = {**self.with_tools(prompt).template_kwargs, "add_generation_prompt": True, "tokenize": False}
        asked = [self._guarded(message, TOOL_ROLES) for message in prompt.messages or ()]
        followed = [self._guarded(message, FOREIGN_ROLES) for message in messages]
        text: str = self._tokenizer.apply_chat_template([*asked, *followed], **options)
        return text

    def _guarded(self, message: Message, roles: Sequence[str]) -> Message:
        if self._special is None or message.get("role") not in roles:
            return message
        return guarded(message, self._special)

    def _tokens(self, text: str) -> Tokens:
        return encode_guarded(text, self._tokenizer)

    def _text(self, tokens: Tokens) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=False)
        return text


def _after(turn: str, text: str) -> str | None:
    """Return the part of a text after the turn that it begins with, or ``None`` if it begins otherwise."""
    if text.startswith(turn):
        return text[len(turn) :]
    core, body = turn.strip(), text.lstrip()
    return body[len(core) :] if body.startswith(core) else None


def check_template(tokenizer: Any, prompt: Prompt, tools: Sequence[Mapping[str, Any]], roles: Sequence[str]) -> None:
    """Check that the chat template describes the tools to the model, and takes messages of some roles after a turn.

    Raises:
        ConfigError: The template ignores the tools, or it refuses a role.
    """
    render = tokenizer.apply_chat_template
    if tools and render(prompt.messages, tools=list(tools), tokenize=False) == render(prompt.messages, tokenize=False):
        raise ConfigError(
            "rollout.agent.tools: the tokenizer's chat template does not mention tools; use a template that does, or "
            "describe the tools in the prompt and set rollout.agent.describe_tools=false"
        )
    format = ChatFormat(tokenizer, tools, 0)
    for role in roles:
        try:
            format.text(prompt, [{"role": "assistant", "content": "0"}, {"role": role, "content": "0"}])
        except TemplateError as error:
            raise ConfigError(f"policy: the chat template refuses a message of role {role}: {error}") from error

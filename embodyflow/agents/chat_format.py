"""Tokens of chat messages that continue a conversation, without encoding earlier turns again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from embodyflow.agents.transcript import Tokens
from embodyflow.errors import ConfigError
from embodyflow.prompts.prompts import Prompt, encode, end_of_response

Message = Mapping[str, Any]

_TURN = "A-turn-of-the-assistant"
"""Message that stands for the model's last turn, so that what the template puts after it can be found."""


class ChatFormat:
    """Encodes messages by the chat template of a tokenizer.

    Rendering a whole chat again may change earlier turns: another way to cut a text into tokens, or a template that
    leaves out earlier thoughts. So only the text that the template puts after a turn is encoded, and appended to the
    tokens that were sampled.

    Args:
        tokenizer: Tokenizer of ``transformers`` with a chat template.
        tools: Schemas of the tools that the template describes to the model.
        max_prompt_tokens: Most tokens of a prompt.
    """

    def __init__(self, tokenizer: Any, tools: Sequence[Mapping[str, Any]], max_prompt_tokens: int) -> None:
        self._tokenizer, self._max_prompt_tokens = tokenizer, max_prompt_tokens
        self._options: dict[str, Any] = {"tools": list(tools)} if tools else {}

    def with_tools(self, prompt: Prompt) -> Prompt:
        """Return a prompt whose template also gets the tools."""
        return replace(prompt, template_kwargs={**prompt.template_kwargs, **self._options})

    def begin(self, prompt: Prompt) -> Tokens:
        """Return the tokens of a prompt, up to the start of the model's turn.

        Raises:
            PromptTooLongError: The prompt has more than ``max_prompt_tokens`` tokens.
        """
        return encode(self.with_tools(prompt), self._tokenizer, self._max_prompt_tokens)

    def go_on(self, prompt: Prompt, new: Sequence[Message], before: Tokens) -> tuple[Tokens, Tokens]:
        """Return the tokens between the model's last turn and its next one.

        Args:
            prompt: Prompt of the conversation.
            new: Messages after the model's turn.
            before: All tokens up to the end of the model's turn.

        Returns:
            The tokens that end the turn, none if the model wrote them, and those of the messages with the start of the
            next turn.

        Raises:
            ConfigError: The chat template changes what comes before the new messages.
        """
        prompt = self.with_tools(prompt)
        earlier = [*(prompt.messages or ()), {"role": "assistant", "content": _TURN}]
        options = {**prompt.template_kwargs, "tokenize": False}
        render = self._tokenizer.apply_chat_template
        closed: str = render(earlier, add_generation_prompt=False, **options)
        whole: str = render([*earlier, *new], add_generation_prompt=True, **options)
        head, found, _ = closed.rpartition(_TURN)
        if not found or not whole.startswith(head + _TURN):
            raise ConfigError(
                "policy: the chat template changes a turn when messages follow it; allowed are templates that only "
                "append"
            )
        text = whole[len(head + _TURN) :]
        tokens: Tokens = tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        end = end_of_response(prompt, self._tokenizer)
        if tokens[: len(end)] != end:  # the template ends a turn in the middle of a chat otherwise than the last one
            return (), tokens
        return (() if before[-len(end) :] == end else end), tokens[len(end) :]


def check_template(tokenizer: Any, prompt: Prompt, tools: Sequence[Mapping[str, Any]], roles: Sequence[str]) -> None:
    """Check that the chat template describes the tools to the model, and only appends messages of some roles.

    Raises:
        ConfigError: The template ignores the tools, or it changes earlier turns.
    """
    render = tokenizer.apply_chat_template
    if tools and render(prompt.messages, tools=list(tools), tokenize=False) == render(prompt.messages, tokenize=False):
        raise ConfigError(
            "rollout.agent.tools: the tokenizer's chat template does not mention tools; use a template that does, or "
            "describe the tools in the prompt and set rollout.agent.describe_tools=false"
        )
    format = ChatFormat(tokenizer, tools, 0)
    for role in roles:
        format.go_on(prompt, [{"role": role, "content": "0"}], (0,))

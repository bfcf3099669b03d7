"""A turn of the model as both APIs ask for it and answer it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from embodyflow.agents.chat.chat_format import Message

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True)
class TurnRequest:
    """A request for the next turn.

    Attributes:
        messages: All messages before the turn, as :func:`~embodyflow.agents.endpoint.messages.normalize` gives them.
        tools: Schemas of the tools that the chat template describes.
        reads_calls: Whether tool calls in the turn are read; otherwise the whole turn is text.
        stop: Strings that end the turn.
        max_tokens: Most tokens of the turn; ``None`` means as many as the run allows.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    reads_calls: bool = True
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None


@dataclass(frozen=True)
class Call:
    """A tool call of the model.

    Attributes:
        id: Id by which the program's answer names the call.
        name: Name of the tool.
        arguments: Arguments by name.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]

    @property
    def json_arguments(self) -> str:
        """Arguments as JSON, as both APIs carry them."""
        return json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True)
class Turn:
    """A turn of the model.

    Attributes:
        name: Name of the turn in its episode, unique and the same in a replay.
        text: Text beside the calls, which may be empty.
        calls: Tool calls.
        finish_reason: ``stop``, ``length`` at a limit of tokens, or ``tool_calls``.
        tokens: Text and log-prob of each sampled token before the one that ended the turn.
        num_prompt_tokens, num_sampled_tokens: Number of tokens that the turn continues, and of those it has.
    """

    name: str
    text: str
    calls: tuple[Call, ...]
    finish_reason: FinishReason
    tokens: tuple[tuple[str, float], ...]
    num_prompt_tokens: int
    num_sampled_tokens: int

    def log_probs(self) -> list[dict[str, Any]]:
        """Return the log-probs of the tokens, as both APIs carry them."""
        return [
            {"token": text, "logprob": log_prob, "bytes": list(text.encode()), "top_logprobs": []}
            for text, log_prob in self.tokens
        ]

    def message(self) -> dict[str, Any]:
        """Return the turn as the message by which the next request names it."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
                for call in self.calls
            ]
        return message

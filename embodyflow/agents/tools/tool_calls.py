"""Parsers that find tool calls in a turn of the model."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from embodyflow.errors import ConfigError
from embodyflow.rewards.functions.final_answers import THINK, final_text


@dataclass(frozen=True)
class ToolCall:
    """A call that the model asks for.

    Attributes:
        name: Name of the tool.
        arguments: Arguments by name.
    """

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class UnreadableCall:
    """A call that cannot be read.

    Attributes:
        reason: Problem, in words for the model.
    """

    reason: str


class _RepeatedNameError(ValueError):
    """An object of JSON has a name twice; Python would keep the last value."""


Parser: TypeAlias = Callable[[str, str], list[ToolCall | UnreadableCall]]
"""Finds the calls in a turn; a turn without calls ends the episode.

The arguments are the text of the turn, with its special tokens, and the text before it. Calls within the model's
thinking are only considered, and do not count."""

_HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_PYTHON_TAG = "<|python_tag|>"


def parse_hermes(text: str, before: str = "") -> list[ToolCall | UnreadableCall]:
    """Read the calls of Hermes and Qwen: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""
    return [_read(call, "arguments") for call in _HERMES.findall(_after_thinking(text, before))]


def parse_llama3(text: str, before: str = "") -> list[ToolCall | UnreadableCall]:
    """Read the calls of Llama 3: JSON objects with ``name`` and ``parameters``, separated by semicolons."""
    text = _after_thinking(text, before)
    body = text.strip().removeprefix(_PYTHON_TAG).strip()
    if not (body.startswith("{") or text.strip().startswith(_PYTHON_TAG)):
        return []
    if not body:
        return [UnreadableCall("the call is empty")]
    calls, start = list[ToolCall | UnreadableCall](), 0
    while start < len(body):
        try:
            value, start = _DECODER.raw_decode(body, start)
        except (ValueError, RecursionError) as error:  # the latter of thousands of brackets
            return [*calls, _unreadable(error)]
        calls.append(_call(value, "parameters"))
        start += len(body[start:]) - len(body[start:].lstrip("; \n"))
    return calls


def parse_by_schema(
    tokenizer: Any, tools: Sequence[Mapping[str, Any]], text: str, before: str
) -> list[ToolCall | UnreadableCall]:
    """Read the calls by the tokenizer's own ``response_template`` (transformers' ``parse_response``).

    Args:
        tokenizer: Tokenizer with a response template.
        tools: Schemas of the tools, by which arguments that the format gives as text get their types.
        text: Text of the turn.
        before: Text before the turn, where the chat template may have begun it.
    """
    try:
        message = tokenizer.parse_response(text, prefix=before, tools=list(tools))
    except (ValueError, KeyError, RecursionError) as error:  # its messages quote the whole turn after the first line
        return [UnreadableCall(f"the call cannot be read: {str(error).strip().partition(chr(10))[0]}")]
    return [_call(call.get("function", call), "arguments") for call in message.get("tool_calls", [])]


PARSERS: dict[str, Callable[..., list[ToolCall | UnreadableCall]]] = {"hermes": parse_hermes, "llama3": parse_llama3}
"""Parsers of a turn's text alone, by the value of ``rollout.agent.parser``; :func:`build_parser` has all of them."""


def build_parser(name: str, tokenizer: Any, tools: Sequence[Mapping[str, Any]]) -> Parser:
    """Return a parser by the value of ``rollout.agent.parser``.

    Args:
        name: Name of a format, or ``schema`` for the tokenizer's own.
        tokenizer: Tokenizer of the model.
        tools: Schemas of the tools.

    Raises:
        ConfigError: The tokenizer has no response template.
    """
    if name in PARSERS:
        return PARSERS[name]
    if getattr(tokenizer, "response_template", None) is None:
        raise ConfigError(
            "rollout.agent.parser=schema: the tokenizer has no response_template; set policy.tokenizer to one that "
            f"has, or use {' or '.join(PARSERS)}"
        )
    return partial(parse_by_schema, tokenizer, tools)


def _after_thinking(text: str, before: str) -> str:
    """Return the part of a turn after its thinking, which the chat template may have begun before the turn."""
    return final_text(f"{THINK}{text}" if before.rstrip().endswith(THINK) else text)


def _names_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedNameError(f"the call has {next(name for name in names if names.count(name) > 1)!r} twice")
    return values


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_names_once, parse_constant=_refuse_constant)


def _read(text: str, arguments: str) -> ToolCall | UnreadableCall:
    try:
        return _call(_DECODER.decode(text), arguments)
    except (ValueError, RecursionError) as error:
        return _unreadable(error)


def _unreadable(error: Exception) -> UnreadableCall:
    return UnreadableCall(str(error) if isinstance(error, _RepeatedNameError) else "the call is not JSON")


def _call(value: Any, arguments: str) -> ToolCall | UnreadableCall:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return UnreadableCall('a call needs a "name"')
    given = value.get(arguments, {})
    if not isinstance(given, dict):
        return UnreadableCall(f'"{arguments}" must be an object')
    return ToolCall(value["name"], given)

"""Parsers that find tool calls in a turn of the model."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias


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


Parser: TypeAlias = Callable[[str], list[ToolCall | UnreadableCall]]
"""Finds the calls in the text of a turn, with its special tokens; a turn without calls ends the episode."""

_HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_PYTHON_TAG = "<|python_tag|>"


def parse_hermes(text: str) -> list[ToolCall | UnreadableCall]:
    """Read the calls of Hermes and Qwen: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""
    return [_read(call, "arguments") for call in _HERMES.findall(text)]


def parse_llama3(text: str) -> list[ToolCall | UnreadableCall]:
    """Read the calls of Llama 3: JSON objects with ``name`` and ``parameters``, separated by semicolons."""
    body = text.strip().removeprefix(_PYTHON_TAG).strip()
    if not (body.startswith("{") or text.strip().startswith(_PYTHON_TAG)):
        return []
    if not body:
        return [UnreadableCall("the call is empty")]
    decoder, calls, start = json.JSONDecoder(), list[ToolCall | UnreadableCall](), 0
    while start < len(body):
        try:
            value, start = decoder.raw_decode(body, start)
        except (ValueError, RecursionError):  # the latter of thousands of brackets
            return [*calls, UnreadableCall("the call is not JSON")]
        calls.append(_call(value, "parameters"))
        start += len(body[start:]) - len(body[start:].lstrip("; \n"))
    return calls


PARSERS: dict[str, Parser] = {"hermes": parse_hermes, "llama3": parse_llama3}
"""Parsers by the value of ``rollout.agent.parser``."""


def _read(text: str, arguments: str) -> ToolCall | UnreadableCall:
    try:
        return _call(json.loads(text), arguments)
    except (ValueError, RecursionError):
        return UnreadableCall("the call is not JSON")


def _call(value: Any, arguments: str) -> ToolCall | UnreadableCall:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return UnreadableCall('a call needs a "name"')
    given = value.get(arguments, {})
    if not isinstance(given, dict):
        return UnreadableCall(f'"{arguments}" must be an object')
    return ToolCall(value["name"], given)

"""Parsers of tool calls."""

import pytest

from embodyflow.agents.tool_calls import PARSERS, ToolCall, UnreadableCall

ADD = ToolCall("add", {"a": 1})


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("The answer is 4.", []),
        ('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', [ADD]),
        ('First.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n', [ADD]),
        ('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>' * 2, [ADD, ADD]),
        ('<tool_call>{"name": "add", "arguments": {"a": 1}}', [ADD]),  # the turn ended before the closing tag
        ('<tool_call>{"name": "now"}</tool_call>', [ToolCall("now", {})]),
    ],
)
def test_hermes(text, calls):
    assert PARSERS["hermes"](text) == calls


@pytest.mark.parametrize(
    "body", ['{"name": "add", "arguments": ', "add(1)", "", '["add"]', '{"name": 3}', "[" * 100_000]
)
def test_hermes_reports_what_it_cannot_read(body):
    [call] = PARSERS["hermes"](f"<tool_call>{body}</tool_call>")

    assert isinstance(call, UnreadableCall)


def test_hermes_refuses_arguments_that_are_no_object():
    [call] = PARSERS["hermes"]('<tool_call>{"name": "add", "arguments": [1]}</tool_call>')

    assert call == UnreadableCall('"arguments" must be an object')


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("The answer is 4.", []),
        ('{"name": "add", "parameters": {"a": 1}}', [ADD]),
        ('<|python_tag|>{"name": "add", "parameters": {"a": 1}}; {"name": "add", "parameters": {"a": 1}}', [ADD, ADD]),
    ],
)
def test_llama3(text, calls):
    assert PARSERS["llama3"](text) == calls


@pytest.mark.parametrize("text", ["<|python_tag|>add(1)", '{"name": "add", ', "<|python_tag|>", '{"a":' * 100_000])
def test_llama3_reports_what_it_cannot_read(text):
    *_, call = PARSERS["llama3"](text)

    assert isinstance(call, UnreadableCall)

"""Parsers of tool calls."""

import pytest

from embodyflow.agents.tools.tool_calls import PARSERS, ToolCall, UnreadableCall, build_parser
from embodyflow.errors import ConfigError
from embodyflow.prompts.calculator import build_tokenizer

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


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1, "a": 2}}</tool_call>'),
        ("llama3", '{"name": "add", "parameters": {"a": 1, "a": 2}}'),
    ],
)
def test_an_argument_that_is_there_twice_has_no_value(parser, text):
    assert PARSERS[parser](text, "") == [UnreadableCall("the call has 'a' twice")]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_json_lacks_is_unreadable(number):
    text = f'<tool_call>{{"name": "add", "arguments": {{"a": {number}}}}}</tool_call>'
    assert PARSERS["hermes"](text, "") == [UnreadableCall("the call is not JSON")]


@pytest.mark.parametrize(
    ("text", "before", "calls"),
    [
        ("<think>I could {call}</think>The answer is 4.", "", []),
        ("<think>I could {call}</think>{call}", "", [ADD]),
        ("I could {call}</think>The answer is 4.", "<assistant><think>\n", []),
        ("I could {call}", "<assistant><think>\n", []),
        ("{call}", "<think>a turn before</think> <assistant>", [ADD]),
    ],
)
def test_calls_within_the_thinking_do_not_count(text, before, calls):
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    assert PARSERS["hermes"](text.replace("{call}", call), before) == calls


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


ADD_SCHEMA = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}


def schema_parser(call):
    """Return the parser of a tokenizer with a response template, whose prompt may begin a thought."""
    tokenizer = build_tokenizer()
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "<assistant>",
        "fields": {
            "reasoning_content": {"open": "<think>", "close": "</think>"},
            "tool_calls": {"repeats": True, "transform": {"type": "function", "function": "{content}"}, **call},
            "content": {},
        },
    }
    return build_parser("schema", tokenizer, [ADD_SCHEMA])


JSON_CALL = {"open": "<call>", "close": "</call>", "content": "json"}


@pytest.mark.parametrize(
    ("text", "before", "calls"),
    [
        ("The answer is 4.", "<assistant>", []),
        ('<call>{"name": "add", "arguments": {"a": 1}}</call>', "<assistant>", [ADD]),
        ('So.<call>{"name": "add", "arguments": {"a": 1}}</call>' * 2, "<assistant>", [ADD, ADD]),
        ('<call>{"name": "add", "arguments": {"a": "1"}}</call>', "<assistant>", [ADD]),  # typed by the tool
        ('<call>{"name": "add", "arguments": {"a": 1}}</call>', "<assistant><think>", []),  # only a thought
        ('</think><call>{"name": "add", "arguments": {"a": 1}}</call>', "<assistant><think>", [ADD]),
        ('<call>{"name": "add", "arguments": {"a": 1}}</call>', "<assistant><think><end><user>?<assistant>", [ADD]),
    ],
)
def test_schema(text, before, calls):
    assert schema_parser(JSON_CALL)(text, before) == calls


@pytest.mark.parametrize("body", ["add(1)", '["add"]', '{"name": 3}', '{"name": "add", "arguments": [1]}', "["])
def test_schema_reports_what_it_cannot_read(body):
    [call] = schema_parser(JSON_CALL)(f"<call>{body}</call>", "<assistant>")

    assert isinstance(call, UnreadableCall) and "\n" not in call.reason


def test_a_schema_of_a_call_without_json():
    call = {
        "open_pattern": r"<f=(?P<name>\w+)>",
        "close": "</f>",
        "content": "xml-inline",
        "content_args": {"tag_pattern": r"<(?P<key>\w+)>(?P<value>.*?)</\w+>"},
        "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
    }
    assert schema_parser(call)("<f=add><a>1</a></f>", "<assistant>") == [ADD]


def test_a_tokenizer_without_a_response_template_is_refused():
    with pytest.raises(ConfigError, match=r"schema: the tokenizer has no response_template; .* hermes or llama3"):
        build_parser("schema", build_tokenizer(), [])

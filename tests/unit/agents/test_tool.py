"""Tools: validated arguments, and what counts as the model's mistake."""

import json

import pytest

from embodyflow.agents.tool import ModelMistake, Tool, is_mistake, text_of, tools_by_name
from embodyflow.errors import ConfigError


def search(query: str, limit: int = 3) -> list[str]:
    """Search.

    Args:
        query: What to look for.
        limit: Most answers.
    """
    return [query] * limit


def untyped(query) -> str:
    """Search.

    Args:
        query: What to look for.
    """
    return query


def undescribed(query: str) -> str:
    """Search."""
    return query


def test_the_schema_is_that_of_openai():
    schema = Tool(search).schema

    assert schema["type"] == "function" and schema["function"]["name"] == "search"
    assert schema["function"]["parameters"]["required"] == ["query"]


def test_arguments_are_validated_and_defaults_filled_in():
    assert Tool(search).validate({"query": "x"}) == {"query": "x", "limit": 3}


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({}, "query"),
        ({"query": 3}, "query"),
        ({"query": "x", "limit": "many"}, "limit"),
        ({"query": "x", "page": 1}, "page"),
        ({"query": None}, "query"),
    ],
)
def test_wrong_arguments_are_mistakes_that_name_the_place(arguments, place):
    with pytest.raises(ModelMistake, match=f"^search: {place}: "):
        Tool(search).validate(arguments)


@pytest.mark.parametrize("function", [untyped, undescribed])
def test_a_function_without_types_or_descriptions_is_no_tool(function):
    with pytest.raises(ConfigError, match=f"rollout.agent: {function.__name__} is no tool: .*type for each argument"):
        Tool(function)


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="two tools have the name search"):
        tools_by_name([search, search])


@pytest.mark.parametrize(
    ("error", "mistake"),
    [
        (ModelMistake("no"), True),
        (ValueError("no"), True),
        (ZeroDivisionError(), True),
        (json.JSONDecodeError("no", "", 0), False),  # a server's broken answer
        (UnicodeDecodeError("utf-8", b"", 0, 1, "no"), False),
        (KeyError("no"), False),
        (ConnectionError(), False),
        (TimeoutError(), False),
        (MemoryError(), False),
    ],
)
def test_only_plain_value_errors_and_arithmetic_are_mistakes(error, mistake):
    assert is_mistake(error) is mistake


def test_answers_are_text_or_json():
    assert text_of("1") == "1" and text_of({"a": [1, None]}) == '{"a": [1, null]}'

"""Tools: validated arguments, schemas, and answers of bounded length."""

import json
from datetime import date

import numpy as np
import pytest

from embodyflow.agents.tools.tool import ModelMistake, Tool, build_tools, shorten, text_of
from embodyflow.config.agents.agent import AgentConfig, ToolConfig
from embodyflow.errors import ConfigError

HERE = "tests.unit.agents.test_tool"


def config_of(name, **limits):
    return ToolConfig(function=f"{HERE}:{name}", **limits)


def search(query: str, limit: int = 3) -> list[str]:
    """Search.

    Args:
        query: Words to look for.
        limit: Most answers.
    """
    return [query] * limit


def untyped(query) -> str:
    """Search.

    Args:
        query: Words to look for.
    """
    return query


def undescribed(query: str) -> str:
    """Search."""
    return query


SEARCH = Tool(search, config_of("search"))


def test_the_schema_is_that_of_openai():
    function = SEARCH.schema["function"]

    assert SEARCH.schema["type"] == "function" and function["name"] == "search"
    assert function["parameters"]["required"] == ["query"]


def test_arguments_are_validated_and_defaults_filled_in():
    assert SEARCH.validate({"query": "x"}) == {"query": "x", "limit": 3}


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({}, "query"),
        ({"query": 3}, "query"),
        ({"query": "x", "limit": "many"}, "limit"),
        ({"query": "x", "limit": 1.5}, "limit"),
        ({"query": "x", "page": 1}, "page"),
        ({"query": None}, "query"),
    ],
)
def test_wrong_arguments_are_mistakes_that_name_the_place(arguments, place):
    with pytest.raises(ModelMistake, match=f"^search: {place}: "):
        SEARCH.validate(arguments)


@pytest.mark.parametrize("name", ["untyped", "undescribed"])
def test_a_function_without_types_or_descriptions_is_no_tool(name):
    with pytest.raises(ConfigError, match=f"rollout.agent.tools: {name} is no tool: .*type for each argument"):
        build_tools([config_of(name)])


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="two tools have the name search"):
        build_tools([config_of("search"), config_of("search", timeout=1.0)])


def test_a_tool_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match=r"rollout.agent.tools: .*no attribute 'find'"):
        build_tools([config_of("find")])


@pytest.mark.parametrize("reference", ["builtins:str", "builtins:KeyboardInterrupt"])
def test_mistakes_must_be_exceptions(reference):
    with pytest.raises(ConfigError, match=f"mistakes={reference}: must name a subclass of Exception"):
        build_tools([config_of("search", mistakes=(reference,))])


def test_a_reference_stands_for_a_tool_with_default_limits():
    agent = AgentConfig.model_validate({"max_turns": 2, "tools": [f"{HERE}:search", {"function": "a:b", "timeout": 1}]})

    assert [(tool.function, tool.timeout) for tool in agent.tools] == [(f"{HERE}:search", 30.0), ("a:b", 1.0)]


def awkward(_hidden: int, model_config: str, model_dump: int = 2, schema: int = 3) -> str:
    """Join.

    Args:
        _hidden: A number.
        model_config: A text.
        model_dump: A number.
        schema: A number.
    """
    return f"{_hidden} {model_config} {model_dump} {schema}"


@pytest.mark.filterwarnings("error")
def test_an_argument_may_have_any_name():
    tool = Tool(awkward, config_of("awkward"))
    found = tool.validate({"_hidden": 1, "model_config": "a", "schema": 4})
    assert found == {"_hidden": 1, "model_config": "a", "model_dump": 2, "schema": 4}
    with pytest.raises(ModelMistake, match=r"^awkward: _hidden: "):
        tool.validate({"_hidden": "one", "model_config": "a"})


def placed(number: int, /) -> str:
    """Place.

    Args:
        number: A number.
    """
    return str(number)


def open_ended(**words: int) -> str:
    """Take anything.

    Args:
        words: Numbers.
    """
    return str(words)


@pytest.mark.parametrize(("name", "kind"), [("placed", "positional-only"), ("open_ended", "variadic keyword")])
def test_an_argument_that_has_no_name_of_its_own_makes_no_tool(name, kind):
    with pytest.raises(ConfigError, match=f"{name} is no tool: its argument .* is {kind}; allowed are arguments"):
        build_tools([config_of(name)])


def test_numbers_and_arrays_of_numpy_are_those_of_json():
    """NumPy's own text of a long array leaves out its middle."""
    assert text_of({"count": np.int64(3), "mean": np.float32(0.5)}) == '{"count": 3, "mean": 0.5}'
    assert json.loads(text_of(np.arange(2000).reshape(2, 1000))) == [[*range(1000)], [*range(1000, 2000)]]


def test_answers_are_text_or_json():
    assert text_of("1") == "1" and text_of({"a": [1, None]}) == '{"a": [1, null]}'
    assert text_of({"on": date(2026, 1, 2), "of": {"b", "c", "a"}}) == '{"on": "2026-01-02", "of": ["a", "b", "c"]}'


@pytest.mark.parametrize("answer", [object(), (each for each in "ab"), {"found": [object()]}])
def test_an_object_without_a_text_is_no_answer(answer):
    """What Python writes for it is an address in memory, which differs in each process."""
    with pytest.raises(TypeError, match=r"a tool returned <.*, which is no text, number, list or object of JSON"):
        text_of(answer)


def test_an_answer_has_only_characters_that_a_tokenizer_takes():
    broken = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert shorten(broken, config_of("search")) == "caf?"


@pytest.mark.parametrize(
    ("keep", "text"),
    [
        ("head", "01234… (5 characters cut) …"),
        ("tail", "… (5 characters cut) …56789"),
        ("ends", "012… (5 characters cut) …89"),
    ],
)
def test_a_long_answer_is_cut_and_says_so(keep, text):
    assert shorten("0123456789", config_of("search", max_answer_chars=5, keep=keep)) == text
    assert shorten("01234", config_of("search", max_answer_chars=5, keep=keep)) == "01234"

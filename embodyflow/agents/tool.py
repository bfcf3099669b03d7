"""Tools: typed functions that the model may call."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

from pydantic import ConfigDict, ValidationError, create_model

from embodyflow.config.agent import ToolConfig
from embodyflow.errors import ConfigError
from embodyflow.references import resolve


class ModelMistake(Exception):
    """The model called a tool wrongly; the model reads the message. Tools raise it for arguments that they refuse."""


class Tool:
    """A function that the model may call, with the limits of its calls.

    Args:
        function: Function or bound method with types and a docstring of Google's style, which describe it to the model.
            It may be a coroutine function; any other runs in a thread. It returns text or a JSON-able value.
        config: Limits of its calls.

    Raises:
        ConfigError: An argument has no type or no description, or ``mistakes`` names no exception.
    """

    def __init__(self, function: Callable[..., Any], config: ToolConfig) -> None:
        self.name, self.function, self.config = function.__name__, function, config
        self.mistakes: tuple[type[Exception], ...] = (ModelMistake, *map(_exception, config.mistakes))
        self.schema = _schema_of(function)
        hints = get_type_hints(function)
        fields: dict[str, Any] = {
            name: (hints[name], ... if parameter.default is parameter.empty else parameter.default)
            for name, parameter in inspect.signature(function).parameters.items()
        }
        self._arguments = create_model(self.name, __config__=ConfigDict(extra="forbid", strict=True), **fields)

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with the types of the function.

        Raises:
            ModelMistake: An argument is missing, unknown or of another type.
        """
        try:
            # By JSON, as the model wrote them: a list may then become a tuple, and an integer a float.
            values = self._arguments.model_validate_json(json.dumps(arguments))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "arguments"
            raise ModelMistake(f"{self.name}: {place}: {first['msg'].lower()}") from error
        return {name: getattr(values, name) for name in type(values).model_fields}


def build_tools(configs: Sequence[ToolConfig]) -> dict[str, Tool]:
    """Return the tools of a configuration by name.

    Raises:
        ConfigError: A function cannot be imported, lacks types or descriptions, or has the name of another.
    """
    tools: dict[str, Tool] = {}
    for config in configs:
        tool = Tool(_import(config.function), config)
        if tool.name in tools:
            raise ConfigError(f"rollout.agent.tools: two tools have the name {tool.name}; names must differ")
        tools[tool.name] = tool
    return tools


def text_of(answer: Any) -> str:
    """Return a tool's answer as text; anything but text as JSON."""
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, default=str)


def shorten(text: str, config: ToolConfig) -> str:
    """Cut an answer to ``max_answer_chars`` characters, and say so in it."""
    limit = config.max_answer_chars
    if len(text) <= limit:
        return text
    note = f"… ({len(text) - limit} characters cut) …"
    head = {"head": limit, "tail": 0, "ends": (limit + 1) // 2}[config.keep]
    return text[:head] + note + text[len(text) - (limit - head) :]


def _import(reference: str) -> Any:
    try:
        return resolve(reference)
    except ImportError as error:
        raise ConfigError(f"rollout.agent.tools: {reference}: {error}") from error


def _exception(reference: str) -> type[Exception]:
    found = _import(reference)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        raise ConfigError(f"rollout.agent.tools: mistakes={reference}: must name a subclass of Exception")
    return found


def _schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    from transformers.utils import get_json_schema  # imports torch, which the flow's process does without

    try:
        schema: dict[str, Any] = get_json_schema(function)
    except Exception as error:  # its own exception classes name the argument
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"rollout.agent.tools: {function.__qualname__} is no tool: {reason}; a tool needs a type for each argument "
            "and a docstring with a description of each"
        ) from error
    schema["function"].pop("return", None)
    return schema

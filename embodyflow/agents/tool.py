"""Tools: typed functions that the model may call, with the three outcomes of a call."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

from pydantic import ConfigDict, ValidationError, create_model

from embodyflow.errors import ConfigError


class ModelMistake(Exception):
    """The model called a tool wrongly; the model reads the message. Tools may raise it."""


class Tool:
    """A function that the model may call.

    Args:
        function: Function or bound method with types and a docstring of Google's style, which describe it to the model.
            It may be a coroutine function. It returns text or a JSON-able value.

    Raises:
        ConfigError: An argument has no type or no description.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name, self.function = function.__name__, function
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


def is_mistake(error: Exception) -> bool:
    """Return whether a tool's exception is the model's mistake; any other is a failure of the infrastructure.

    Mistakes are :class:`ModelMistake`, ``ValueError`` itself and arithmetic errors. Subclasses of ``ValueError`` do not
    count, because libraries raise them for broken answers of a server, such as ``json.JSONDecodeError``.
    """
    return isinstance(error, ModelMistake | ArithmeticError) or type(error) is ValueError


def text_of(answer: Any) -> str:
    """Return a tool's answer as text; anything but text as JSON."""
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, default=str)


def tools_by_name(functions: Sequence[Callable[..., Any]]) -> dict[str, Tool]:
    """Return the tools of some functions by name.

    Raises:
        ConfigError: Two functions have the same name, or one lacks types or descriptions.
    """
    tools: dict[str, Tool] = {}
    for function in functions:
        tool = Tool(function)
        if tool.name in tools:
            raise ConfigError(f"rollout.agent: two tools have the name {tool.name}; names must differ")
        tools[tool.name] = tool
    return tools


def _schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    from transformers.utils import get_json_schema  # imports torch, which the flow's process does without

    try:
        schema: dict[str, Any] = get_json_schema(function)
    except Exception as error:  # its own exception classes name the argument
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"rollout.agent: {function.__qualname__} is no tool: {reason}; a tool needs a type for each argument and a "
            "docstring with a description of each"
        ) from error
    schema["function"].pop("return", None)
    return schema

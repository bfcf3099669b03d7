"""Tools: typed functions that the model may call."""

import importlib.metadata
import inspect
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Self, get_type_hints

from packaging.version import Version
from pydantic import ConfigDict, Field, ValidationError, create_model

from embodyflow.config.agents.agent import CallLimits, ToolConfig
from embodyflow.errors import ConfigError
from embodyflow.references import resolve

MCP_TOOLS = "embodyflow.agents.mcp.mcp_tool:mcp_tools"  # imports the SDK
OLDEST_MCP = "2.3"  # of the extra in pyproject.toml
_ADDRESS = re.compile(r" at 0x[0-9a-f]+>")
"""End of the text of an object that says only where it is in memory."""


class ModelMistake(Exception):
    """The model called a tool wrongly; the model reads the message. Tools raise it for arguments that they refuse."""


@dataclass
class Callee:
    """A function with the limits of its calls.

    Attributes:
        name: Name of the function, for messages.
        function: Function to call; a coroutine function is awaited, any other runs in a thread, and what it returns is
            awaited if it is a coroutine.
        config: Limits of its calls.
        mistakes: Exceptions that are the model's mistake.
        queue: Name of the queue that calls wait in; functions of a queue share its ``concurrency``.
    """

    name: str
    function: Callable[..., Any]
    config: CallLimits
    mistakes: tuple[type[Exception], ...]
    queue: str


class ModelTool(Callee, ABC):
    """A function that the model may call.

    Attributes:
        schema: Description for the chat template, as OpenAI's ``tools`` have it.
    """

    schema: dict[str, Any]

    @abstractmethod
    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the function takes them.

        Raises:
            ModelMistake: An argument is missing, unknown or of another type.
        """

    def close(self) -> None:
        """Close what the tool holds open; a second call does nothing."""


class Tool(ModelTool):
    """A Python function that the model may call, with the limits of its calls.

    Args:
        function: Function or bound method with types and a docstring of Google's style, which describe it to the model.
            It may be a coroutine function; any other runs in a thread. It returns text or a JSON-able value.
        config: Limits of its calls.
        mistakes: Exceptions that are the model's mistake, besides :class:`ModelMistake`.
        queue: Name of the queue that its calls wait in; ``None`` means one of its own.

    Raises:
        ConfigError: An argument has no type or no description, or cannot be given by its name.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        config: CallLimits,
        mistakes: Sequence[type[Exception]] = (),
        queue: str | None = None,
    ) -> None:
        name = function.__name__
        super().__init__(name, function, config, (ModelMistake, *mistakes), queue or name)
        self.schema = _schema_of(function)
        hints, parameters = get_type_hints(function), _parameters_of(function)
        self._names = [*parameters]
        # An alias may be any name; a field's own may be neither `_x` nor one of pydantic's, such as `model_config`.
        fields: dict[str, Any] = {
            f"argument_{place}": (
                hints[name],
                Field(... if parameter.default is parameter.empty else parameter.default, alias=name),
            )
            for place, (name, parameter) in enumerate(parameters.items())
        }
        self._arguments = create_model(self.name, __config__=ConfigDict(extra="forbid", strict=True), **fields)

    def bound_to(self, function: Callable[..., Any]) -> Self:
        """Return the same tool with another function of the same arguments."""
        tool = copy(self)
        tool.function = function
        return tool

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
        return {name: getattr(values, f"argument_{place}") for place, name in enumerate(self._names)}


def build_tools(configs: Sequence[ToolConfig], mistakes: Sequence[str] = ()) -> dict[str, ModelTool]:
    """Return the tools of a configuration by name.

    Args:
        configs: Tools and their limits.
        mistakes: Exceptions ``module:Class`` of all tools that are the model's mistake.

    Raises:
        ConfigError: A function cannot be imported, lacks types or descriptions, or has the name of another; or a server
            cannot be started or reached.
    """
    common, tools = exceptions("rollout.agent.mistakes", mistakes), dict[str, ModelTool]()
    for config in configs:
        for tool in _tools_of(config, common):
            if tool.name in tools:
                close_tools([tool, *tools.values()])
                raise ConfigError(f"rollout.agent.tools: two tools have the name {tool.name}; names must differ")
            tools[tool.name] = tool
    return tools


def close_tools(tools: Iterable[ModelTool]) -> None:
    """Close tools."""
    for tool in tools:
        tool.close()


def _tools_of(config: ToolConfig, mistakes: Sequence[type[Exception]]) -> Sequence[ModelTool]:
    if config.function is not None:
        own = exceptions("rollout.agent.tools: mistakes", config.mistakes)
        return [Tool(import_object("rollout.agent.tools", config.function), config, [*own, *mistakes])]
    _check_mcp()
    tools: Sequence[ModelTool] = import_object("rollout.agent.tools", MCP_TOOLS)(config)
    return tools


def _check_mcp() -> None:
    install = "pip install 'embodyflow[mcp]'"
    try:
        found = importlib.metadata.version("mcp")
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(f"rollout.agent.tools: mcp is not installed; {install}") from None
    if Version(found) < Version(OLDEST_MCP):
        raise ConfigError(
            f"rollout.agent.tools: mcp {found} is too old, needed is {OLDEST_MCP}; {install} in an environment without "
            "verifiers, which requires an older mcp"
        )


def text_of(answer: Any) -> str:
    """Return a tool's answer as text; anything but text as JSON, where sets are lists in order, and arrays are lists.

    Raises:
        TypeError: The answer holds an object that has no text of its own, such as a generator.
    """
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, default=_as_json)


def _as_json(value: Any) -> Any:
    """Return a value that JSON lacks, such as a date, as text that is the same in each process."""
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)  # its own order differs from process to process
    if callable(to_list := getattr(value, "tolist", None)):  # of NumPy, torch and pandas, whose texts leave numbers out
        return to_list()
    text = str(value)
    if _ADDRESS.search(text):
        raise TypeError(f"a tool returned {text[:80]}, which is no text, number, list or object of JSON")
    return text


def shorten(text: str, config: CallLimits) -> str:
    """Cut an answer to ``max_answer_chars`` characters, and say so in it.

    Halves of surrogate pairs, as file names of other encodings have, become question marks: no tokenizer takes them.
    """
    limit, text = config.max_answer_chars, text.encode(errors="replace").decode()
    if len(text) <= limit:
        return text
    note = f"… ({len(text) - limit} characters cut) …"
    head = {"head": limit, "tail": 0, "ends": (limit + 1) // 2}[config.keep]
    return text[:head] + note + text[len(text) - (limit - head) :]


def import_object(key: str, reference: str) -> Any:
    """Return the object that a configuration names.

    Raises:
        ConfigError: It cannot be imported; the message begins with the key.
    """
    try:
        return resolve(reference)
    except ImportError as error:
        raise ConfigError(f"{key}: {reference}: {error}") from error


def exceptions(key: str, references: Sequence[str]) -> list[type[Exception]]:
    """Return the exceptions that a configuration names.

    Raises:
        ConfigError: A reference names no subclass of ``Exception``; the message begins with the key.
    """
    found = [import_object(key, reference) for reference in references]
    for reference, each in zip(references, found, strict=True):
        if not (isinstance(each, type) and issubclass(each, Exception)):
            raise ConfigError(f"{key}={reference}: must name a subclass of Exception")
    return found


def _parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return a function's parameters by name.

    Raises:
        ConfigError: One cannot be given by its name.
    """
    parameters = inspect.signature(function).parameters
    for name, parameter in parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                f"rollout.agent.tools: {function.__qualname__} is no tool: its argument {name} is "
                f"{parameter.kind.description}; allowed are arguments that are given by their names"
            )
    return parameters


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

"""Tools of an MCP server, described and called as an agent's own."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import jsonschema
from jsonschema_specifications import REGISTRY
from mcp_types import CallToolResult, EmbeddedResource, TextContent, TextResourceContents
from mcp_types import Tool as ListedTool
from referencing import Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from embodyflow.agents.mcp.mcp_connection import McpConnection
from embodyflow.agents.tools.tool import ModelMistake, ModelTool
from embodyflow.config.agents.agent import McpServerConfig, ToolConfig
from embodyflow.errors import ConfigError


class McpTool(ModelTool):
    """A tool of an MCP server.

    Args:
        listed: Description of the server.
        config: Limits of its calls, and the server.
        connection: Connection to the server.

    Raises:
        ConfigError: The server's schema of the arguments is not one.
    """

    def __init__(self, listed: ListedTool, config: ToolConfig, connection: McpConnection) -> None:
        assert config.mcp is not None
        function = partial(_call, connection, listed.name, config.mcp.on_error)
        super().__init__(listed.name, function, config, (ModelMistake,), listed.name)
        self._connection = connection
        description = {"name": listed.name, "description": listed.description or "", "parameters": listed.input_schema}
        self.schema = {"type": "function", "function": description}
        validator = jsonschema.validators.validator_for(listed.input_schema, jsonschema.Draft202012Validator)
        try:
            validator.check_schema(listed.input_schema)
        except jsonschema.SchemaError as error:
            raise ConfigError(
                f"rollout.agent.tools: {config.mcp.name}: {listed.name}: its schema is wrong: {error.message}"
            ) from error
        if (missing := _missing(listed.input_schema)) is not None:
            raise ConfigError(
                f"rollout.agent.tools: {config.mcp.name}: {listed.name}: its schema is wrong: it has no {missing}"
            )
        self._validator = validator(listed.input_schema)

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments.

        Raises:
            ModelMistake: They do not match the server's schema.
        """
        error = jsonschema.exceptions.best_match(self._validator.iter_errors(dict(arguments)))
        if error is not None:
            place = ".".join(map(str, error.absolute_path)) or "arguments"
            raise ModelMistake(f"{self.name}: {place}: {error.message}")
        return {"arguments": dict(arguments)}

    def close(self) -> None:
        """Close the connection to the server, which its other tools share."""
        self._connection.close()


def mcp_tools(config: ToolConfig) -> list[McpTool]:
    """Connect to an MCP server and return its tools.

    Raises:
        ConfigError: The server cannot be started or reached, or has no such tools.
    """
    assert config.mcp is not None
    key, connection = f"rollout.agent.tools: {config.mcp.name}", McpConnection(config.mcp)
    try:
        offered = connection.list_tools(config.timeout)
        listed = {tool.name: tool for tool in offered}
        if len(listed) < len(offered):
            names = [tool.name for tool in offered]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"{key}: lists the tool {twice} twice; names must differ")
        return [McpTool(listed[name], config, connection) for name in _names(config.mcp, list(listed), key)]
    except ConfigError:
        connection.close()
        raise
    except Exception as error:  # the SDK's and the transport's
        connection.close()
        reason = f"no answer within timeout={config.timeout:g} seconds" if isinstance(error, TimeoutError) else error
        raise ConfigError(f"{key}: its tools cannot be listed: {reason}") from error


def _references(schema: object) -> Iterator[str]:
    """Yield the references in a schema to parts of it, and to other schemas."""
    if isinstance(schema, Mapping):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from _references(part)


def _missing(schema: Mapping[str, Any]) -> str | None:
    """Return a reference that leads nowhere, at which a validator would raise while an episode is played."""
    resource = Resource.from_contents(schema, default_specification=DRAFT202012)
    address = resource.id() or ""
    resolver = REGISTRY.with_resource(address, resource).resolver(address)
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except Unresolvable:
            return reference
    return None


def _names(config: McpServerConfig, listed: list[str], key: str) -> list[str]:
    wanted = listed if config.include is None else list(config.include)
    if unknown := [name for name in wanted if name not in listed]:
        raise ConfigError(f"{key}: has no tool {', '.join(unknown)}; it has {', '.join(listed) or 'none'}")
    if not wanted:
        raise ConfigError(f"{key}: has no tools")
    return wanted


async def _call(connection: McpConnection, name: str, on_error: str, *, arguments: dict[str, Any]) -> str:
    result = await connection.call(name, arguments)
    text = _text_of(result, name)
    if result.is_error:
        raise ModelMistake(text) if on_error == "mistake" else RuntimeError(text)
    return text


def _text_of(result: CallToolResult, name: str) -> str:
    """Return the text of a result; a result without content is its structured value as JSON."""
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    texts = []
    for block in result.content:
        if isinstance(block, TextContent):
            texts.append(block.text)
        elif isinstance(block, EmbeddedResource) and isinstance(block.resource, TextResourceContents):
            texts.append(block.resource.text)
        else:
            raise RuntimeError(f"{name} answers with content of type {block.type}; a language model reads text alone")
    return "\n".join(texts)

"""Tools that an MCP server lists: what is refused before a run."""

import pytest

pytest.importorskip("mcp", reason="needs the extra mcp")

from mcp_types import Tool as ListedTool

from embodyflow.agents.mcp.mcp_connection import McpConnection
from embodyflow.agents.mcp.mcp_tool import mcp_tools
from embodyflow.config.agents.agent import ToolConfig
from embodyflow.errors import ConfigError

CONFIG = ToolConfig.model_validate({"mcp": {"command": ["numbers"]}})


def listing(monkeypatch, *tools):
    """Let a server list tools, each by its name and the schema of its argument ``x``."""
    schemas = [(name, {"type": "object", "properties": {"x": schema}, "$defs": {"y": {}}}) for name, schema in tools]
    listed = [ListedTool(name=name, input_schema=schema) for name, schema in schemas]
    monkeypatch.setattr(McpConnection, "list_tools", lambda connection, timeout: listed)


def test_a_tool_that_is_listed_twice_is_refused(monkeypatch):
    listing(monkeypatch, ("add", {"type": "integer"}), ("draw", {}), ("add", {"type": "string"}))
    with pytest.raises(ConfigError, match=r"^rollout.agent.tools: numbers: lists the tool add twice; names must"):
        mcp_tools(CONFIG)


@pytest.mark.parametrize("reference", ["#/$defs/z", "other.json", "http://localhost:1/schema"])
def test_a_schema_with_a_reference_to_nothing_is_refused(reference, monkeypatch):
    listing(monkeypatch, ("add", {"anyOf": [{"type": "string"}, {"$ref": reference}]}))
    with pytest.raises(ConfigError) as error:
        mcp_tools(CONFIG)
    assert str(error.value) == f"rollout.agent.tools: numbers: add: its schema is wrong: it has no {reference}"


def test_a_schema_may_refer_to_its_parts_and_to_the_drafts(monkeypatch):
    drafts = "https://json-schema.org/draft/2020-12/schema"
    listing(monkeypatch, ("add", {"$ref": "#/$defs/y"}), ("draw", {"$ref": drafts}), ("$ref", {"const": "$ref"}))
    tools = mcp_tools(CONFIG)
    assert [tool.validate({"x": {}}) for tool in tools[:2]] == [{"arguments": {"x": {}}}] * 2
    tools[0].close()

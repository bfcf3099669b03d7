"""Tools of MCP servers (Model Context Protocol), through its SDK: extra ``mcp``."""

"""An MCP server for tests: ``mcp_server.py stdio`` or ``mcp_server.py <port>``. Its process ends where a call asks."""

import os
import sys
import time

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ImageContent

server = MCPServer("numbers", log_level="ERROR")


@server.tool()
def add(left: int, right: int = 1) -> int:
    """Add two numbers.

    Args:
        left: One number.
        right: Another one.
    """
    return left + right


@server.tool()
def process() -> str:
    """Return the id of the process."""
    return str(os.getpid())


@server.tool()
def fail(how: str) -> str:
    """Fail.

    Args:
        how: Way to fail.
    """
    if how == "end":
        os._exit(3)
    if how == "hang":
        time.sleep(20)
    raise ToolError(f"cannot {how}")


@server.tool()
def draw() -> ImageContent:
    """Draw."""
    return ImageContent(type="image", data="", mime_type="image/png")


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", port=int(sys.argv[1]))

"""A connection to an MCP server that is opened again after it was lost."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from mcp import Client
from mcp_types import CallToolResult, Tool

from embodyflow.agents.mcp.mcp_sessions import SessionPool, Sessions, SharedSession
from embodyflow.config.agents.agent import McpServerConfig

T = TypeVar("T")

_LEAVE_SECONDS = 10.0
"""Timeout for a server to end; the kernel kills its process at the latest with this one."""


class McpConnection:
    """A connection in a thread of its own, because the event loops of rollouts come and go.

    The first request opens it. A lost session, and one with a call that exceeded its time limit, is closed, and the
    next request opens another: a command starts a new process. All episodes of a worker share the connection.

    Args:
        config: Server to connect to.
    """

    def __init__(self, config: McpServerConfig) -> None:
        self._loop = asyncio.new_event_loop()
        self._sessions: Sessions = SharedSession(config) if config.url is None else SessionPool(config)
        self._thread = threading.Thread(target=self._loop.run_forever, name="mcp", daemon=True)
        self._thread.start()

    def list_tools(self, timeout: float) -> list[Tool]:
        """Return the server's tools.

        Args:
            timeout: Seconds to connect and list them.

        Raises:
            Exception: The server cannot be started or reached, or does not answer in time.
        """
        return self._submit(self._list_tools).result(timeout)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> CallToolResult:
        """Call a tool; any event loop may await it.

        Raises:
            MCPError: The server refused the request, or the connection was lost.
            Exception: The server cannot be started or reached.
        """

        async def call() -> CallToolResult:
            return await self._request(lambda client: client.call_tool(name, dict(arguments)))

        return await asyncio.wrap_future(self._submit(call))

    def close(self) -> None:
        """Close the connection and end the thread, and with it the server's process; a second call does nothing."""
        if self._loop.is_running():
            self._submit(self._sessions.close).result(_LEAVE_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _submit(self, request: Callable[[], Awaitable[T]]) -> "Future[T]":
        async def run() -> T:
            return await request()

        return asyncio.run_coroutine_threadsafe(run(), self._loop)

    async def _list_tools(self) -> list[Tool]:
        return await self._request(_list_pages)

    async def _request(self, ask: Callable[[Client], Awaitable[T]]) -> T:
        session = await self._sessions.take()
        try:
            answer = await ask(session.client)
        except BaseException as error:  # a refusal, a time limit's cancellation, or a failure of the transport
            self._sessions.give_back(session, error)
            raise
        self._sessions.give_back(session)
        return answer


async def _list_pages(client: Client) -> list[Tool]:
    page = await client.list_tools()
    tools = list(page.tools)
    while page.next_cursor is not None:
        page = await client.list_tools(cursor=page.next_cursor)
        tools += page.tools
    return tools

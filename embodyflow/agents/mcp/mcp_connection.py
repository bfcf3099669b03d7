"""A connection to an MCP server that is opened again after it was lost."""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from mcp import Client, MCPError, StdioServerParameters
from mcp_types import CONNECTION_CLOSED, CallToolResult, Tool

from embodyflow.agents.mcp import server_process
from embodyflow.config.agent import McpServerConfig

log = logging.getLogger(__name__)
T = TypeVar("T")

_LEAVE_SECONDS = 10.0
"""Timeout for a server to end; the kernel kills its process at the latest with this one."""


class McpConnection:
    """A connection in a thread of its own, because the event loops of rollouts come and go.

    The first request opens it. A lost connection, and one with a call that exceeded its time limit, is closed, and the
    next request opens another: a command starts a new process. All episodes of a worker share it.

    Args:
        config: Server to connect to.
    """

    def __init__(self, config: McpServerConfig) -> None:
        self._config = config
        self._loop = asyncio.new_event_loop()
        self._session: _Session | None = None
        self._opening = asyncio.Lock()
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
            self._submit(self._leave).result(_LEAVE_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _submit(self, request: Callable[[], Awaitable[T]]) -> "Future[T]":
        async def run() -> T:
            return await request()

        return asyncio.run_coroutine_threadsafe(run(), self._loop)

    async def _list_tools(self) -> list[Tool]:
        tools: list[Tool] = []
        cursor: str | None = None
        while True:
            page = await self._request(lambda client, cursor=cursor: client.list_tools(cursor=cursor))
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                return tools

    async def _request(self, ask: Callable[[Client], Awaitable[T]]) -> T:
        async with self._opening:
            if self._session is None:
                self._session = await _Session.open(self._config)
            session = self._session
        try:
            return await ask(session.client)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                self._forget(session)
            raise
        except BaseException:  # cancelled by a time limit, or the transport failed
            self._forget(session)
            raise

    def _forget(self, session: "_Session") -> None:
        if self._session is session:
            log.warning("the connection to the MCP server %s is closed; the next call opens another", self._config.name)
            self._session = None
            session.leave()

    async def _leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.leave()
            await session.task


class _Session:
    """An open client. One task enters and leaves it, as the SDK's task groups require.

    Attributes:
        client: The client.
        task: Task that ends when the client has been left.
    """

    client: Client
    task: "asyncio.Task[None]"

    @classmethod
    async def open(cls, config: McpServerConfig) -> "_Session":
        """Open a session.

        Raises:
            Exception: The server cannot be started or reached.
        """
        session, ready = cls(), asyncio.get_running_loop().create_future()
        session._left = asyncio.Event()
        session.task = asyncio.create_task(session._hold(config, ready))
        try:
            session.client = await ready
        except BaseException:
            session.leave()
            session.task.cancel()
            raise
        return session

    def leave(self) -> None:
        """Begin to close the session."""
        self._left.set()

    async def _hold(self, config: McpServerConfig, ready: "asyncio.Future[Client]") -> None:
        try:
            async with Client(_transport(config), cache=None) as client:
                if not ready.done():
                    ready.set_result(client)
                await self._left.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(_first(error))
            elif not isinstance(error, asyncio.CancelledError):
                log.warning("the MCP server %s ended with %s", config.name, _first(error))


def _transport(config: McpServerConfig) -> str | StdioServerParameters:
    if config.url is not None:
        return config.url
    assert config.command is not None
    script = str(Path(server_process.__file__).resolve())
    words = ["-S", "-E", script, str(os.getpid()), *config.command]
    return StdioServerParameters(command=sys.executable, args=words, env=dict(config.env))


def _first(error: BaseException) -> BaseException:
    """Return the exception inside of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, Exception) else RuntimeError(repr(error))

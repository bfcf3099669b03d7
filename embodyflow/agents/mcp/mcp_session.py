"""An open session with an MCP server."""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Self

from mcp import Client, StdioServerParameters

from embodyflow.agents.mcp import server_process
from embodyflow.config.agents.agent import McpServerConfig
from embodyflow.errors import ConfigError

log = logging.getLogger(__name__)


class Session:
    """An open client. One task enters and leaves it, as the SDK's task groups require.

    Attributes:
        client: The client.
        task: Task that ends when the client has been left.
    """

    client: Client
    task: "asyncio.Task[None]"
    _left: asyncio.Event

    @classmethod
    async def open(cls, config: McpServerConfig) -> Self:
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
                lost = _first(error)
                log.warning("the MCP server %s ended with %s: %s", config.name, type(lost).__name__, lost)


def _transport(config: McpServerConfig) -> str | StdioServerParameters:
    if config.url is not None:
        return config.url
    assert config.command is not None
    script = str(Path(server_process.__file__).resolve())
    words = ["-S", "-E", script, str(os.getpid()), *config.command]
    if missing := [name for name in config.inherit if name not in os.environ]:
        raise ConfigError(
            f"rollout.agent.tools: mcp.inherit={missing[0]}: the rollout worker has no such environment variable; set "
            "it before the run or the stack starts"
        )
    inherited = {name: os.environ[name] for name in config.inherit}
    return StdioServerParameters(command=sys.executable, args=words, env={**inherited, **config.env})


def _first(error: BaseException) -> BaseException:
    """Return the exception inside of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, Exception) else RuntimeError(repr(error))

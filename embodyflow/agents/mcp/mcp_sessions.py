"""The open sessions of a connection: one for all calls of a process, or one for each call over HTTP."""

import asyncio
import logging
from collections.abc import Collection
from typing import Protocol

from mcp import MCPError
from mcp_types import CONNECTION_CLOSED

from embodyflow.agents.mcp.mcp_session import Session
from embodyflow.config.agents.agent import McpServerConfig

log = logging.getLogger(__name__)


class Sessions(Protocol):
    """Opens sessions for requests, and closes those that are lost."""

    async def take(self) -> Session:
        """Return a session for a request.

        Raises:
            Exception: The server cannot be started or reached.
        """

    def give_back(self, session: Session, error: BaseException | None = None) -> None:
        """Take back the session of a request that has ended, or failed with an exception."""

    async def close(self) -> None:
        """Close all sessions."""


class SharedSession:
    """One session for all requests, since each would start a process. Implements :class:`Sessions`.

    A request that fails by its time limit or the transport costs the session, and with it the process. It goes on until
    its other requests have ended.

    Args:
        config: Server, a command.
    """

    def __init__(self, config: McpServerConfig) -> None:
        self._config = config
        self._opening = asyncio.Lock()
        self._session: Session | None = None
        self._num_requests: dict[Session, int] = {}

    async def take(self) -> Session:
        """Return the open session, or open one."""
        async with self._opening:
            if self._session is None:
                self._session = await Session.open(self._config)
                self._num_requests[self._session] = 0
            self._num_requests[self._session] += 1
            return self._session

    def give_back(self, session: Session, error: BaseException | None = None) -> None:
        """Forget the session after an error that is no answer of the server; leave it after its last request."""
        self._num_requests[session] -= 1
        answered = isinstance(error, MCPError) and error.code != CONNECTION_CLOSED
        if error is not None and not answered and session is self._session:
            _log_loss(self._config)
            self._session = None
        if session is not self._session and not self._num_requests[session]:
            del self._num_requests[session]
            session.leave()

    async def close(self) -> None:
        """Leave all sessions and wait for the ends of their processes."""
        self._session = None
        await _close(self._num_requests)


class SessionPool:
    """A session for each request at a time. Implements :class:`Sessions`.

    Requests over HTTP that share a session also share its loss: one broken connection would fail all of them.

    Args:
        config: Server, an address.
    """

    def __init__(self, config: McpServerConfig) -> None:
        self._config = config
        self._open: set[Session] = set()
        self._idle: list[Session] = []

    async def take(self) -> Session:
        """Return an idle session, or open one."""
        if self._idle:
            return self._idle.pop()
        session = await Session.open(self._config)
        self._open.add(session)
        return session

    def give_back(self, session: Session, error: BaseException | None = None) -> None:
        """Keep the session for the next request; after an error leave it and all idle ones.

        A restarted server knows none of them and answers with an error.
        """
        self._idle.append(session)
        if error is None:
            return
        _log_loss(self._config)
        while self._idle:
            lost = self._idle.pop()
            self._open.discard(lost)
            lost.leave()

    async def close(self) -> None:
        """Leave all sessions and wait for their ends."""
        self._idle.clear()
        await _close(self._open)


async def _close(sessions: Collection[Session]) -> None:
    for session in sessions:
        session.leave()
    await asyncio.gather(*(session.task for session in sessions), return_exceptions=True)


def _log_loss(config: McpServerConfig) -> None:
    log.warning("a session with the MCP server %s is closed; the next call opens another", config.name)

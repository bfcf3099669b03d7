"""Turns between those who use the ranks of a group and those who change their number."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Membership:
    """Lets many use the ranks of a group at the same time, or one change their number.

    A change that waits goes first: those who want to use the ranks meanwhile wait for its end.
    """

    def __init__(self) -> None:
        self._users, self._is_changing = 0, False
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        """Keep the number of ranks as it is within the block."""
        while self._is_changing:
            await self._changed.wait()
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._wake()

    @asynccontextmanager
    async def changed(self) -> AsyncIterator[None]:
        """Wait until nobody uses the ranks, and keep it so within the block."""
        while self._is_changing:
            await self._changed.wait()
        self._is_changing = True
        try:
            while self._users:
                await self._changed.wait()
            yield
        finally:
            self._is_changing = False
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

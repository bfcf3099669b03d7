"""A run's artifacts in the Prefect UI: put up beside the work, and never in its way."""

import asyncio
import base64
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import httpx
from prefect.artifacts import (
    acreate_link_artifact,
    acreate_markdown_artifact,
    acreate_progress_artifact,
    acreate_table_artifact,
    aupdate_progress_artifact,
)
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger

from embodyflow.orchestration.server.absence import FAREWELL_SECONDS, PAUSE_SECONDS, means_away

NEWS_SECONDS = 2.0
"""How often what is new is put up: faster than that nobody reads."""

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class _Notice:
    """What is to be shown: ``show`` asks the server to, given the artifact's key; every so many seconds at most."""

    show: Callable[[str], Awaitable[object]]
    every: float


class Artifacts:
    """Shows artifacts of a flow run, the newest of each name, as soon as the server takes them.

    Contents that take time to make are given as functions, which are called only for what is shown.

    Args:
        run_id: which the artifacts' keys begin with.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._waiting: dict[str, _Notice] = {}
        self._shown_at: dict[str, float] = {}
        self._news = asyncio.Event()
        self._progress: UUID | None = None

    def put_progress(self, percent: float, description: str) -> None:
        """Show how far the run is."""
        self._put("progress", partial(self._show_progress, percent, description))

    def put_link(self, name: str, uri: str, text: str, description: str) -> None:
        """Show a link."""
        self._put(name, lambda key: acreate_link_artifact(uri, link_text=text, key=key, description=description))

    def put_text(self, name: str, markdown: str, description: str) -> None:
        """Show Markdown."""
        self._put(name, lambda key: acreate_markdown_artifact(markdown, key=key, description=description))

    def put_table(self, name: str, rows: Rows | Callable[[], Rows], description: str) -> None:
        """Show a table; its numbers are shortened."""

        def show(key: str) -> Awaitable[object]:
            table = [{column: short(value) for column, value in row.items()} for row in _made(rows)]
            return acreate_table_artifact(table, key=key, description=description)

        self._put(name, show)

    def put_picture(
        self, name: str, picture: bytes | Callable[[], bytes], description: str, *, every: float = 0.0
    ) -> None:
        """Show a PNG; a function that draws it is called in a thread, every so many seconds at most."""

        async def show(key: str) -> None:
            png = await asyncio.to_thread(_made, picture)
            # As Markdown: under an artifact of type image the UI prints its address, which is the whole picture.
            markdown = f"![{description}](data:image/png;base64,{base64.b64encode(png).decode()})"
            await acreate_markdown_artifact(markdown, key=key, description=description)

        self._put(name, show, every)

    async def keep_up(self) -> None:
        """Show what is new, for as long as nobody cancels it."""
        while True:
            await self._news.wait()
            self._news.clear()
            await self._show(name for name, notice in self._waiting.items() if self._is_due(name, notice))
            await asyncio.sleep(NEWS_SECONDS)
            if self._waiting:
                self._news.set()

    async def show_rest(self) -> None:
        """Show all that was put up, unless the server does not answer for two minutes."""
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                while self._waiting:
                    if not await self._show(self._waiting):
                        await asyncio.sleep(PAUSE_SECONDS)
        except TimeoutError:
            get_run_logger().warning("the Prefect server does not answer: not shown are %s", ", ".join(self._waiting))

    def _put(self, name: str, show: Callable[[str], Awaitable[object]], every: float = 0.0) -> None:
        self._waiting[name] = _Notice(show, every)
        self._news.set()

    def _is_due(self, name: str, notice: _Notice) -> bool:
        return time.monotonic() - self._shown_at.get(name, -math.inf) >= notice.every

    async def _show(self, names: Iterable[str]) -> bool:
        """Show these; say whether the server was there. What it refuses is not offered again."""
        for name in list(names):
            notice = self._waiting[name]
            try:
                await notice.show(self._key(name))
            except (httpx.HTTPError, PrefectException) as error:
                if means_away(error):
                    get_run_logger().warning("the artifacts in the UI are behind the run: %s", error or repr(error))
                    return False
                get_run_logger().warning("the Prefect server refuses the artifact %s", name, exc_info=True)
            self._shown_at[name] = time.monotonic()
            if self._waiting[name] is notice:  # and not a newer one
                del self._waiting[name]
        return True

    async def _show_progress(self, percent: float, description: str, key: str) -> None:
        if self._progress is None:
            self._progress = await acreate_progress_artifact(percent, key=key, description=description)
        else:
            await aupdate_progress_artifact(self._progress, percent)

    def _key(self, name: str) -> str:
        # Prefect allows lower-case letters, digits and dashes.
        return re.sub(r"[^a-z0-9]+", "-", f"{self._run_id}-{name}".lower()).strip("-")


def short(value: Any) -> Any:
    """Return a value as a table shows it: floats to four digits, lists in a line."""
    if isinstance(value, list):
        return ", ".join(str(short(each)) for each in value)
    return f"{value:.4g}" if isinstance(value, float) else value


def _made(content: Any) -> Any:
    return content() if callable(content) else content


@asynccontextmanager
async def showing(run_id: str) -> AsyncIterator[Artifacts]:
    """Give the artifacts of the flow run this is called in; all of them are shown when the block is left in peace."""
    artifacts = Artifacts(run_id)
    keeping_up = asyncio.create_task(artifacts.keep_up())
    try:
        yield artifacts
    finally:
        keeping_up.cancel()
        await asyncio.wait([keeping_up])
    if not keeping_up.cancelled():
        keeping_up.result()  # raises what ended it early
    await artifacts.show_rest()

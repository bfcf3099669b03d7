"""A run's artifacts in the Prefect UI, published in the background and without delaying the run."""

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

from embodyflow.orchestration.server.availability import FINAL_TIMEOUT_SECONDS, RETRY_SECONDS, is_unavailable
from embodyflow.orchestration.server.markdown import escape_markdown

UPDATE_SECONDS = 2.0
"""Interval between updates. Nobody reads faster than that."""

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class _Update:
    """A pending update of an artifact.

    Attributes:
        publish: Sends it to the server, given the artifact's key.
        every: Minimum number of seconds between two updates of this artifact.
    """

    publish: Callable[[str], Awaitable[object]]
    every: float


class Artifacts:
    """Publishes the artifacts of a flow run, the newest of each name, as soon as the server accepts them.

    Content that takes time to compute may be given as a function, which is called only for updates that are published.

    Args:
        run_id: Prefix of the artifacts' keys.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._pending: dict[str, _Update] = {}
        self._published_at: dict[str, float] = {}
        self._has_updates = asyncio.Event()
        self._progress_id: UUID | None = None

    def put_progress(self, percent: float, description: str) -> None:
        """Show the progress of the run in percent."""
        self._put("progress", partial(self._publish_progress, percent, description))

    def put_link(self, name: str, uri: str, text: str, description: str) -> None:
        """Show a link."""
        self._put(name, lambda key: acreate_link_artifact(uri, link_text=text, key=key, description=description))

    def put_text(self, name: str, markdown: str, description: str) -> None:
        """Show Markdown."""
        self._put(name, lambda key: acreate_markdown_artifact(markdown, key=key, description=description))

    def put_table(self, name: str, rows: Rows | Callable[[], Rows], description: str) -> None:
        """Show a table, its floats with four significant digits and its texts as they are."""

        def publish(key: str) -> Awaitable[object]:
            # The UI renders each cell that is a string as Markdown.
            table = [
                {column: short(value, escape_markdown) for column, value in row.items()} for row in _evaluate(rows)
            ]
            return acreate_table_artifact(table, key=key, description=description)

        self._put(name, publish)

    def put_picture(
        self, name: str, picture: bytes | Callable[[], bytes], description: str, *, every: float = 0.0
    ) -> None:
        """Show a PNG. A function that draws it is called in a thread, at most once per ``every`` seconds."""

        async def publish(key: str) -> None:
            png = await asyncio.to_thread(_evaluate, picture)
            # As Markdown: for an artifact of type image the UI prints its URL, which would be the whole picture.
            markdown = f"![{description}](data:image/png;base64,{base64.b64encode(png).decode()})"
            await acreate_markdown_artifact(markdown, key=key, description=description)

        self._put(name, publish, every)

    async def publish_updates(self) -> None:
        """Publish updates until cancelled."""
        while True:
            await self._has_updates.wait()
            self._has_updates.clear()
            await self._publish(name for name, update in self._pending.items() if self._is_due(name, update))
            await asyncio.sleep(UPDATE_SECONDS)
            if self._pending:
                self._has_updates.set()

    async def publish_pending(self) -> None:
        """Publish all pending updates; give up after two minutes if the server does not answer."""
        try:
            async with asyncio.timeout(FINAL_TIMEOUT_SECONDS):
                while self._pending:
                    if not await self._publish(self._pending):
                        await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError:
            get_run_logger().warning(
                "the Prefect server does not answer; artifacts not published: %s", ", ".join(self._pending)
            )

    def _put(self, name: str, publish: Callable[[str], Awaitable[object]], every: float = 0.0) -> None:
        self._pending[name] = _Update(publish, every)
        self._has_updates.set()

    def _is_due(self, name: str, update: _Update) -> bool:
        return time.monotonic() - self._published_at.get(name, -math.inf) >= update.every

    async def _publish(self, names: Iterable[str]) -> bool:
        """Publish these updates, each once even if the server refuses it; return False if it is unavailable."""
        for name in list(names):
            update = self._pending[name]
            try:
                await update.publish(self._key(name))
            except (httpx.HTTPError, PrefectException) as error:
                if is_unavailable(error):
                    get_run_logger().warning(
                        "the Prefect server is unavailable, so artifacts in the UI lag behind the run: %s",
                        error or repr(error),
                    )
                    return False
                get_run_logger().warning("the Prefect server refuses the artifact %s", name, exc_info=True)
            self._published_at[name] = time.monotonic()
            if self._pending[name] is update:  # not yet replaced by a newer one
                del self._pending[name]
        return True

    async def _publish_progress(self, percent: float, description: str, key: str) -> None:
        if self._progress_id is None:
            self._progress_id = await acreate_progress_artifact(percent, key=key, description=description)
        else:
            await aupdate_progress_artifact(self._progress_id, percent)

    def _key(self, name: str) -> str:
        # Prefect allows lower-case letters, digits and dashes.
        return re.sub(r"[^a-z0-9]+", "-", f"{self._run_id}-{name}".lower()).strip("-")


def short(value: Any, escape: Callable[[str], str]) -> Any:
    """Format a value for a table: floats with four significant digits, lists joined by commas.

    Args:
        value: Number, text, list or mapping.
        escape: Function that escapes texts for the place where they are shown.
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(str(short(each, escape)) for each in value)
    return value if value is None or isinstance(value, int) else escape(str(value))


def _evaluate(content: Any) -> Any:
    return content() if callable(content) else content


@asynccontextmanager
async def open_artifacts(run_id: str) -> AsyncIterator[Artifacts]:
    """Yield the artifacts of the current flow run, and publish those that are pending when the block exits."""
    artifacts = Artifacts(run_id)
    publishing = asyncio.create_task(artifacts.publish_updates())
    try:
        yield artifacts
    finally:
        publishing.cancel()
        await asyncio.wait([publishing])
    if not publishing.cancelled():
        publishing.result()  # raises the error that ended it
    await artifacts.publish_pending()

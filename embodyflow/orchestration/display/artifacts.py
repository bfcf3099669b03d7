"""A run's artifacts in the Prefect UI, published in the background and without delaying the run.

Each artifact is created once and then updated in place, so the UI shows one card of each kind, the current one.
"""

import asyncio
import json
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
from prefect import runtime
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterKey
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger

from embodyflow.orchestration.display.markdown import escape_markdown
from embodyflow.orchestration.display.report import Content, Report, Section
from embodyflow.orchestration.server.availability import FINAL_TIMEOUT_SECONDS, RETRY_SECONDS, is_unavailable

UPDATE_SECONDS = 2.0
"""Interval between updates. Nobody reads faster than that."""
REPORT_SECONDS = 10.0
"""Minimum interval between updates of the report, which holds pictures."""
REPORT_SHARE = 0.02
"""Largest share of the time that the report's pictures may take from the run's own work."""

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
        client: Client of the Prefect server.
        flow_run_id: Flow run that owns the artifacts.
        is_retry: Whether an earlier attempt of the flow run may have created them.
    """

    def __init__(self, run_id: str, client: PrefectClient, flow_run_id: UUID, is_retry: bool = False) -> None:
        self._run_id, self._client = run_id, client
        self._flow_run_id, self._is_retry = flow_run_id, is_retry
        self._pending: dict[str, _Update] = {}
        self._published_at: dict[str, float] = {}
        self._has_updates = asyncio.Event()
        self._ids: dict[str, UUID] = {}
        self._report = Report()
        self._report_seconds = REPORT_SECONDS

    def put_progress(self, percent: float, description: str) -> None:
        """Show the progress of the run in percent."""
        self._put("progress", lambda key: self._show(key, "progress", percent, description))

    def put_table(self, name: str, rows: Rows | Callable[[], Rows], description: str) -> None:
        """Show a table, its floats with four significant digits and its texts as they are."""

        async def publish(key: str) -> None:
            # The UI renders each cell that is a string as Markdown.
            table = [
                {column: short(value, escape_markdown) for column, value in row.items()} for row in _evaluate(rows)
            ]
            await self._show(key, "table", json.dumps(table), description)

        self._put(name, publish)

    def put_section(self, section: Section, content: Content, part: str = "") -> None:
        """Show a part of a section in the report, whose Markdown is computed in a thread if it is a function."""
        self._report.put(section, content, part)
        self._put("report", self._publish_report, self._report_seconds)

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
        """Publish all pending updates; give up after a minute if the server does not answer."""
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

    async def _publish_report(self, key: str) -> None:
        began = time.monotonic()
        markdown = await asyncio.to_thread(self._report.render)
        self._report_seconds = max(REPORT_SECONDS, (time.monotonic() - began) / REPORT_SHARE)
        await self._show(key, "markdown", markdown, "results, episodes, learning curve")

    async def _show(self, key: str, kind: str, data: str | float, description: str) -> None:
        """Update the artifact of a key, or create it if neither this process nor an earlier attempt has.

        Prefect's own method of an update would send the data a second time, as the payload of an event.

        Raises:
            httpx.HTTPStatusError: The server refuses it, as one that a person has deleted; the next update creates it.
        """
        if self._is_retry and key not in self._ids and (found := await self._find(key)) is not None:
            self._ids[key] = found
        if key in self._ids:
            body = {"data": data, "description": description}
            try:
                await self._client.request("PATCH", "/artifacts/{id}", path_params={"id": self._ids[key]}, json=body)
            except httpx.HTTPStatusError as error:
                if error.response.status_code == httpx.codes.NOT_FOUND:
                    del self._ids[key]
                raise
        else:
            owner = self._flow_run_id
            wanted = ArtifactCreate(key=key, type=kind, data=data, description=description, flow_run_id=owner)
            self._ids[key] = (await self._client.create_artifact(wanted)).id

    async def _find(self, key: str) -> UUID | None:
        """Return the id of the artifact that an earlier attempt of this flow run created, or ``None``."""
        owner = ArtifactFilterFlowRunId(any_=[self._flow_run_id])
        wanted = ArtifactFilter(key=ArtifactFilterKey(any_=[key]), flow_run_id=owner)
        found = await self._client.read_artifacts(artifact_filter=wanted)
        return found[0].id if found else None

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
async def open_artifacts(run_id: str, *, goes_on: bool = False) -> AsyncIterator[Artifacts]:
    """Yield the artifacts of the current flow run, and publish those that are pending when the block exits.

    Args:
        run_id: Prefix of the artifacts' keys.
        goes_on: Whether this attempt of the flow run may have opened them before.
    """
    async with get_client() as client:
        is_retry = goes_on or runtime.flow_run.run_count > 1
        artifacts = Artifacts(run_id, client, UUID(runtime.flow_run.id), is_retry)
        publishing = asyncio.create_task(artifacts.publish_updates())
        try:
            yield artifacts
        finally:
            publishing.cancel()
            await asyncio.wait([publishing])
        if not publishing.cancelled():
            publishing.result()  # raises the error that ended it
        await artifacts.publish_pending()

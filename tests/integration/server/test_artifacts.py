"""Artifacts on a real Prefect server that is temporarily unavailable."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_stack import post
from prefect import flow, get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from servers import PrefectServer

from embodyflow.orchestration.display import artifacts as module
from embodyflow.orchestration.display.artifacts import open_artifacts
from embodyflow.orchestration.display.report import Section, picture

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    server = PrefectServer(tmp_path_factory.mktemp("prefect"))
    try:
        server.start()
        with temporary_settings({PREFECT_API_URL: server.url}):
            yield server
    finally:
        server.stop()


def published(server: PrefectServer, run_id: str) -> dict[str, list[Any]]:
    """Return the data of a run's artifacts by name, one entry per publication."""
    found: dict[str, list[Any]] = {}
    for each in sorted(post(f"{server.url}/artifacts/filter", {}), key=lambda artifact: str(artifact["created"])):
        key = str(each["key"])
        if key.startswith(f"{run_id}-"):
            found.setdefault(key.removeprefix(f"{run_id}-"), []).append(each["data"])
    return found


def test_updates_during_an_outage_are_published_after_it(
    server: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.2)

    @flow
    async def ends_during_an_outage() -> None:
        async with open_artifacts("Away_1") as artifacts:
            server.stop()
            artifacts.put_table("numbers", [{"iteration": 1}], "outdated before it can be published")
            await asyncio.sleep(0.5)
            artifacts.put_table("numbers", lambda: [{"iteration": 2, "rate": 0.123456}], "")
            artifacts.put_progress(40.0, "")
            artifacts.put_section(Section.CURVE, lambda: picture(b"a PNG", "png", "learning curve"))
            asyncio.get_running_loop().call_later(0.5, server.start)

    asyncio.run(ends_during_an_outage())
    assert published(server, "away-1") == {
        "numbers": ['[{"iteration": 2, "rate": "0.1235"}]'],
        "progress": [40.0],
        "report": ["## Learning curve\n\n![learning curve](data:image/png;base64,YSBQTkc=)\n"],
    }


def test_a_refused_update_is_logged_and_the_others_are_published(
    server: PrefectServer, caplog: pytest.LogCaptureFixture
) -> None:
    @flow
    async def loses_its_progress() -> None:
        async with open_artifacts("lost") as artifacts:
            artifacts.put_progress(10.0, "")
            async with get_client() as client:
                while not (found := [each for each in await client.read_artifacts() if each.key == "lost-progress"]):
                    await asyncio.sleep(0.1)
                await client.delete_artifact(found[0].id)
            artifacts.put_progress(20.0, "")
            artifacts.put_section(Section.FOLDER, "it **ended**")

    asyncio.run(loses_its_progress())
    assert "refuses the artifact progress" in caplog.text
    assert published(server, "lost") == {"report": ["## Folder\n\nit **ended**\n"]}


def test_there_is_one_card_of_a_kind_also_after_a_retry(server: PrefectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UPDATE_SECONDS", 0.01)
    attempts: list[int] = []

    @flow(retries=1)
    async def fails_once() -> None:
        attempts.append(len(attempts))
        async with open_artifacts("once") as artifacts:
            for index in range(3):
                artifacts.put_table("metrics", [{"attempt": attempts[-1], "iteration": index}], "")
                artifacts.put_section(Section.FOLDER, f"attempt {attempts[-1]}, iteration {index}")
                artifacts.put_progress(10.0 * index, "")
                await asyncio.sleep(0.3)
        if attempts == [0]:
            raise RuntimeError("once")

    asyncio.run(fails_once())
    assert published(server, "once") == {
        "metrics": ['[{"attempt": 1, "iteration": 2}]'],
        "report": ["## Folder\n\nattempt 1, iteration 2\n"],
        "progress": [20.0],
    }
    events = post(f"{server.url}/events/filter", {"filter": {"event": {"name": ["prefect.artifact.updated"]}}})
    assert events["events"] == []  # they would hold every version of the data


@pytest.mark.parametrize(
    ("seconds", "share"), [(60.0, 1.0), (0.0, 1e-6)], ids=["at an interval", "less often if drawing takes long"]
)
def test_the_report_is_drawn_seldom_and_at_the_end(
    server: PrefectServer, monkeypatch: pytest.MonkeyPatch, seconds: float, share: float
) -> None:
    monkeypatch.setattr(module, "UPDATE_SECONDS", 0.01)
    monkeypatch.setattr(module, "REPORT_SECONDS", seconds)
    monkeypatch.setattr(module, "REPORT_SHARE", share)
    drawn: list[int] = []

    @flow
    async def updates_often() -> None:
        async with open_artifacts(f"often-{seconds}") as artifacts:
            for index in range(5):
                artifacts.put_section(Section.CURVE, lambda index=index: drawn.append(index) or "curve")
                started = time.monotonic()
                while not drawn and time.monotonic() < started + 30.0:
                    await asyncio.sleep(0.05)
                await asyncio.sleep(0.05)

    asyncio.run(updates_often())
    assert drawn == [0, 4]


def test_an_error_while_drawing_fails_the_run(server: PrefectServer, tmp_path: Path) -> None:
    @flow
    async def cannot_draw() -> None:
        async with open_artifacts("broken") as artifacts:
            artifacts.put_section(Section.CURVE, (tmp_path / "none.md").read_text)
            await asyncio.sleep(0.5)

    with pytest.raises(FileNotFoundError):
        asyncio.run(cannot_draw())

"""Artifacts on a real Prefect server that is away for a while."""

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

from embodyflow.orchestration.server import artifacts as module
from embodyflow.orchestration.server.artifacts import showing

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


def shown(server: PrefectServer, run_id: str) -> dict[str, list[Any]]:
    """Return the data of a run's artifacts, each as often as it was put up, by name."""
    found: dict[str, list[Any]] = {}
    for each in sorted(post(f"{server.url}/artifacts/filter", {}), key=lambda artifact: str(artifact["created"])):
        key = str(each["key"])
        if key.startswith(f"{run_id}-"):
            found.setdefault(key.removeprefix(f"{run_id}-"), []).append(each["data"])
    return found


def test_what_was_put_up_while_the_server_was_away_is_shown_when_it_is_back(
    server: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.2)

    @flow
    async def leaves_early() -> None:
        async with showing("Away_1") as artifacts:
            server.stop()
            artifacts.put_table("numbers", [{"iteration": 1}], "old news by the time it can be shown")
            await asyncio.sleep(0.5)
            artifacts.put_table("numbers", lambda: [{"iteration": 2, "rate": 0.123456}], "")
            artifacts.put_progress(40.0, "")
            artifacts.put_picture("curve", lambda: b"a PNG", "over iterations")
            asyncio.get_running_loop().call_later(0.5, server.start)

    asyncio.run(leaves_early())
    assert shown(server, "away-1") == {
        "numbers": ['[{"iteration": 2, "rate": "0.1235"}]'],
        "progress": [40.0],
        "curve": ["![over iterations](data:image/png;base64,YSBQTkc=)"],
    }


def test_what_the_server_refuses_is_said_and_keeps_nothing_else_from_being_shown(
    server: PrefectServer, caplog: pytest.LogCaptureFixture
) -> None:
    @flow
    async def loses_its_progress() -> None:
        async with showing("lost") as artifacts:
            artifacts.put_progress(10.0, "")
            async with get_client() as client:
                while not (found := [each for each in await client.read_artifacts() if each.key == "lost-progress"]):
                    await asyncio.sleep(0.1)
                await client.delete_artifact(found[0].id)
            artifacts.put_progress(20.0, "")
            artifacts.put_text("summary", "it **ended**", "")

    asyncio.run(loses_its_progress())
    assert "refuses the artifact progress" in caplog.text
    assert shown(server, "lost") == {"summary": ["it **ended**"]}


def test_a_picture_is_drawn_no_oftener_than_asked_but_at_the_end(
    server: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NEWS_SECONDS", 0.01)
    drawn: list[int] = []

    @flow
    async def hurries() -> None:
        async with showing("often") as artifacts:
            for index in range(5):
                artifacts.put_picture("curve", lambda index=index: drawn.append(index) or b"png", "", every=60.0)
                started = time.monotonic()
                while not drawn and time.monotonic() < started + 30.0:
                    await asyncio.sleep(0.05)
                await asyncio.sleep(0.05)

    asyncio.run(hurries())
    assert drawn == [0, 4]


def test_contents_that_cannot_be_made_end_the_run(server: PrefectServer, tmp_path: Path) -> None:
    @flow
    async def cannot_draw() -> None:
        async with showing("broken") as artifacts:
            artifacts.put_picture("curve", (tmp_path / "none.png").read_bytes, "")
            await asyncio.sleep(0.5)

    with pytest.raises(FileNotFoundError):
        asyncio.run(cannot_draw())

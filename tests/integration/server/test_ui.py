"""What a person sees in the Prefect UI: the form of a deployment, a run's cards, and videos that play."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import imageio.v3 as iio
import numpy as np
import pytest
from browser import WIDTHS, Browser, open_browser
from local_stack import post
from PIL import Image
from prefect import flow, runtime
from prefect.settings import PREFECT_API_URL, temporary_settings

from embodyflow.config.composition.compose import compose_config
from embodyflow.orchestration.display import reporting
from embodyflow.orchestration.display.artifacts import open_artifacts
from embodyflow.record.run_folder import RunFolder
from flows.grpo import grpo

pytestmark = pytest.mark.integration

HOSTILE = "<img src=http://192.0.2.1/x.png onerror=document.title=1> ![x](http://192.0.2.1/y.png)"
SUMMARY = {
    "run_id": "shown",
    "success_rate_before": 0.25,
    "success_rate_after": 0.75,
    "success_interval_before": [0.16, 0.37],
    "success_interval_after": [0.63, 0.84],
    "num_goals": 64,
    "weights_digest": "0" * 64,
    "unrestorable": [HOSTILE],
}


def served_by(api_url: str, work: Callable[[], Any]) -> Any:
    """Call a function that uses a server, in a thread of its own: Playwright runs an event loop in this one."""

    def call() -> Any:
        with temporary_settings({PREFECT_API_URL: api_url}):
            return work()

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(call).result()


@pytest.fixture(scope="module")
def browser(prefect_api: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(prefect_api, tmp_path_factory.mktemp("screenshots")) as browser:
        yield browser


@pytest.fixture(scope="module")
def run_id(prefect_api: str, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Id of a flow run that has reported as a training run of three iterations does."""
    folder = tmp_path_factory.mktemp("runs") / "shown"
    for index in (0, 3):
        frames = np.full((8, 64, 256, 3), 20 * index, np.uint8)
        for moment in range(8):
            frames[moment, :, 32 * moment : 32 * moment + 32] = 250
        (folder / "videos").mkdir(parents=True, exist_ok=True)
        iio.imwrite(folder / "videos" / f"iteration-{index:06d}.gif", frames, duration=100, loop=0)
    run_folder = RunFolder(folder)
    for index in (1, 2, 3):
        facts = {"rollout/num_episodes": 16.0, "rollout/success_rate": index / 4, "policy/entropy": 4.5}
        run_folder.metrics.append({"iteration": index, **facts})
    config = compose_config(["experiment=embodied", "iterations=3", "run_id=shown"])

    @flow(name="shows", flow_run_name="shown")
    async def shows() -> str:
        async with open_artifacts("shown") as artifacts:
            run: Any = SimpleNamespace(config=config, artifacts=artifacts, folder=run_folder)
            reporting.report_start(run)
            for index in (1, 2, 3):
                reporting.report_progress(run, index)
                await asyncio.sleep(0.2)
            artifacts.put_table("examples", [{"response": HOSTILE, "reward": 1.0}], "examples after iteration 3")
            reporting.report_end(run, SUMMARY)
        return str(runtime.flow_run.id)

    return str(served_by(prefect_api, lambda: asyncio.run(shows())))


def artifact(prefect_api: str, run_id: str, name: str) -> str:
    """Return the path of an artifact's page."""
    wanted = {"flow_run_id": {"any_": [run_id]}, "key": {"any_": [f"shown-{name}"]}}
    [found] = post(f"{prefect_api}/artifacts/filter", {"artifacts": wanted})
    return f"/artifacts/artifact/{found['id']}"


def test_the_form_describes_each_parameter_and_starts_a_run(prefect_api: str, browser: Browser) -> None:
    deployment_id = served_by(prefect_api, lambda: grpo.to_deployment("form").apply())
    for width in reversed(WIDTHS):
        page = browser.open(f"/deployments/deployment/{deployment_id}/run", width)
        page.get_by_text("prints all keys and their meanings").wait_for()
        text = page.inner_text("body")
        for name in ("experiment", "algorithm", "iterations", "seed", "run_id", "resume", "overrides"):
            assert f"{name} (Optional)" in text
        assert "Seed of every random draw" in text and "Property is type" not in text
        browser.photograph(page, "form")
    page.locator("input[type=number]").first.fill("3")
    page.get_by_role("button", name="Submit").click()
    wanted = {"deployments": {"id": {"any_": [str(deployment_id)]}}}
    deadline = time.monotonic() + 120
    while not (found := post(f"{prefect_api}/flow_runs/filter", wanted)):
        assert time.monotonic() < deadline, page.inner_text("body")
        time.sleep(0.5)
    parameters = found[0]["parameters"]
    assert parameters["iterations"] == 3 and parameters["experiment"] == "embodied"  # type: ignore[index]
    assert not any(parameters.get(name) for name in ("seed", "run_id", "resume", "overrides"))  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_run_has_one_card_of_each_kind(browser: Browser, run_id: str, width: int) -> None:
    page = browser.open(f"/runs/flow-run/{run_id}", width)
    if width == WIDTHS[0]:
        page.get_by_text("Artifacts", exact=True).first.click()
        page.locator(".artifact-card__title").nth(3).wait_for()
        cards = page.locator(".artifact-card__title").all_inner_texts()
        assert sorted(cards) == ["shown-examples", "shown-metrics", "shown-progress", "shown-report"]
    else:
        page.get_by_text("Completed").first.wait_for()
    assert np.asarray(Image.open(browser.photograph(page, "run"))).std() > 5  # not blank
    assert "Traceback" not in page.inner_text("body")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_report_shows_the_results_and_plays_the_videos(
    prefect_api: str, browser: Browser, run_id: str, width: int
) -> None:
    page = browser.open(artifact(prefect_api, run_id, "report"), width)
    page.get_by_text("Episodes after training").wait_for()
    headings = [each for each in page.locator("h2").all_inner_texts() if each]
    assert headings == [
        "Before and after training",
        "Episodes before training",
        "Episodes after training",
        "Learning curve",
        "Folder",
    ]
    pictures = page.locator("img[src^='data:image']")
    page.wait_for_function("[...document.querySelectorAll('img[src^=data]')].every(each => each.naturalWidth > 0)")
    assert pictures.count() == 3
    assert all(each.bounding_box()["width"] <= width for each in pictures.all())
    assert "0.25" in page.inner_text("table") and "+0.5" in page.inner_text("table")
    browser.photograph(page, "report")
    assert plays(pictures.nth(0)) and plays(pictures.nth(1)) and not plays(pictures.nth(2), tries=2)


def plays(picture: Any, tries: int = 20) -> bool:
    """Return True if a picture on a page changes."""
    first = picture.screenshot()
    for _ in range(tries):
        time.sleep(0.15)
        if picture.screenshot() != first:
            return True
    return False


def test_a_policys_text_is_shown_and_asks_for_nothing(prefect_api: str, browser: Browser, run_id: str) -> None:
    for name in ("examples", "report"):
        page = browser.open(artifact(prefect_api, run_id, name))
        page.get_by_text("onerror=document.title=1").first.wait_for()
        assert page.title() != "1"
        browser.photograph(page, name)
    assert [url for url in browser.foreign if "192.0.2.1" in url] == []

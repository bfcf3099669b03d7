"""A headless Chromium that shows pages of a Prefect server's UI, for tests."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

WIDTHS = (1280, 390)
"""Widths of a laptop's window and of a phone, in pixels."""
SCREENSHOTS = "EMBODYFLOW_SCREENSHOTS"
"""Environment variable with the folder for screenshots; by default they go to the test's temporary folder."""


class Browser:
    """Opens pages of one server and photographs them.

    Args:
        chromium: Playwright's browser.
        api_url: Address of the server's API.
        folder: Folder for screenshots.

    Attributes:
        foreign: Addresses on other servers that pages have asked for.
        seconds: Path and seconds of each request to the API that was answered, in the order of the answers.
    """

    def __init__(self, chromium: Any, api_url: str, folder: Path) -> None:
        self._chromium, self._base, self._folder = chromium, api_url.removesuffix("/api"), folder
        self.foreign: list[str] = []
        self.seconds: list[tuple[str, float]] = []

    def empty_page(self, width: int = WIDTHS[0]) -> Any:
        """Return an empty page in a window of its own."""
        page = self._chromium.new_page(viewport={"width": width, "height": 1000})
        page.set_default_timeout(120_000)  # a busy machine
        return page

    def open(self, path: str, width: int = WIDTHS[0]) -> Any:
        """Return a page of the UI in a window of its own."""
        page = self.empty_page(width)
        page.on("request", self._note)
        page.on("requestfinished", self._time)
        page.goto(self._base + path)
        return page

    def photograph(self, page: Any, name: str) -> Path:
        """Write a picture of the whole page; return its file."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{name}-{page.viewport_size['width']}.png"
        page.screenshot(path=path, full_page=True)
        return path

    def _note(self, request: Any) -> None:
        if not re.match(rf"{re.escape(self._base)}/|data:|blob:|ws:", request.url):
            self.foreign.append(request.url)

    def _time(self, request: Any) -> None:
        if request.url.startswith(f"{self._base}/api/"):
            path = request.url.removeprefix(f"{self._base}/api").partition("?")[0]
            self.seconds.append((path, request.timing["responseEnd"] / 1000))


@contextmanager
def open_browser(api_url: str, folder: Path) -> Iterator[Browser]:
    """Yield a browser for a server, or skip the test where Playwright or Chromium is not installed."""
    playwright = pytest.importorskip("playwright.sync_api")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=program)
        try:
            yield Browser(chromium, api_url, Path(os.environ.get(SCREENSHOTS, folder)))
        finally:
            chromium.close()

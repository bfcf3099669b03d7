"""The report of a run: the order of its sections, its bounds, and videos that play in it."""

import base64
import io
import re
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
from PIL import Image

from embodyflow.orchestration.display import report as module
from embodyflow.orchestration.display.report import Report, Section, picture
from embodyflow.orchestration.display.videos import animation, compressed


def gif_of(path: Path, frames: np.ndarray) -> Path:
    iio.imwrite(path, frames, duration=50, loop=0)
    return path


@pytest.fixture
def gif(tmp_path: Path) -> Path:
    """A bright square that moves over a dark background in ten frames."""
    frames = np.full((10, 96, 128, 3), 20, np.uint8)
    for moment in range(10):
        frames[moment, 40:60, 10 * moment : 10 * moment + 20] = 250
    return gif_of(tmp_path / "episodes.gif", frames)


def test_sections_stand_in_their_order_whatever_the_order_of_their_updates() -> None:
    report = Report()
    for section in (Section.FOLDER, Section.PLAYED, Section.RESULT):
        report.put(section, f"{section.name} {{}}", "part")
    report.put(Section.PLAYED, "another", "other")
    report.put(Section.RESULT, "the newest", "part")
    assert report.render().split("\n\n") == [
        "## Before and after training",
        "the newest",
        "## Successes and failures",
        "PLAYED {}",
        "another",
        "## Folder",
        "FOLDER {}\n",
    ]


def test_a_function_is_called_once() -> None:
    calls: list[int] = []
    report = Report()
    report.put(Section.CURVE, lambda: calls.append(1) or "drawn")  # type: ignore[func-returns-value]
    assert report.render() == report.render() == "## Learning curve\n\ndrawn\n"
    assert calls == [1]


def test_what_has_no_room_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REPORT_BYTES", 1000)
    report = Report()
    for task in ("reach", "push"):
        report.put(Section.PLAYED, task[0] * 900, task)
    report.put(Section.FOLDER, "runs/mine")
    lines = report.render().split("\n\n")
    assert lines[1] == "r" * 900 and lines[2].startswith("push: not shown") and lines[4] == "runs/mine\n"


def test_a_video_plays_as_an_animated_picture_with_the_frames_of_its_file(gif: Path) -> None:
    text, markdown = animation(gif, "two [episodes](x)").split("\n\n")
    assert text == r"two \[episodes\](x)"
    found = re.fullmatch(r"!\[two \\\[episodes\\\]\(x\)\]\(data:image/webp;base64,([A-Za-z0-9+/=]+)\)", markdown)
    assert found is not None
    with Image.open(io.BytesIO(base64.b64decode(found[1]))) as webp:
        assert (webp.n_frames, webp.size, webp.info["loop"]) == (10, (128, 96), 0)
        webp.seek(9)
        last = np.asarray(webp.convert("RGB")).astype(int)
    assert last[50, 100].min() > 200 and last[50, 20].max() < 60


def test_a_video_is_made_smaller_until_it_fits_or_is_only_named(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(256, size=(6, 64, 2048, 3), dtype=np.uint8)
    path = gif_of(tmp_path / "noise.gif", noise)
    whole = compressed(path, 10**7)
    assert whole is not None
    small = compressed(path, len(whole) // 6)
    assert small is not None and len(small) <= len(whole) // 6
    with Image.open(io.BytesIO(whole)) as first, Image.open(io.BytesIO(small)) as last:
        assert (first.width, last.width) == (1024, 512)
        assert (first.n_frames, last.n_frames) == (6, 3)
    assert compressed(path, 100) is None


def test_a_video_that_does_not_fit_is_named(gif: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embodyflow.orchestration.display.videos.compressed", lambda path: None)
    assert animation(gif, "episodes").startswith("episodes: too large for this page; see ")


def test_a_picture_holds_its_caption_as_text() -> None:
    assert picture(b"a PNG", "png", "![x](y)") == r"![\!\[x\](y)](data:image/png;base64,YSBQTkc=)"

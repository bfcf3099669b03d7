"""What is logged about events that Prefect's client cannot send."""

import logging
from types import SimpleNamespace

import pytest

from embodyflow.orchestration.server import events

LOST = "Service %r failed to process item %r"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Yield a clock, and start with an outage of which nothing is logged yet."""
    time = SimpleNamespace(now=1000.0, monotonic=lambda: time.now)
    monkeypatch.setattr(events, "time", time)
    monkeypatch.setattr(events._brief_outage, "_passed_at", {})
    events.log_outages_briefly()
    return time


def test_a_line_a_minute_names_the_event_without_its_content(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    item = SimpleNamespace(event="prefect.task-run.Running", payload="x" * 2000)
    services, client = logging.getLogger("prefect._internal.concurrency"), logging.getLogger("prefect.events.clients")
    for seconds in (0, 7, 53, 1):
        clock.now += seconds
        services.error(LOST, "EventsWorker", item)
        client.warning("Unable to connect")
    line = "Service 'EventsWorker' failed to process item 'prefect.task-run.Running'"
    assert caplog.messages == [line, "Unable to connect"] * 2


def test_other_lines_pass(clock: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    services = logging.getLogger("prefect._internal.concurrency")
    for service in ("EventsWorker", "APILogWorker"):
        services.error(LOST, service, SimpleNamespace(event="an event"))
    services.error("another error")
    services.error("another error")
    assert len(caplog.messages) == 4

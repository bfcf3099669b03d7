"""Sends spans to a collector by OpenTelemetry's protocol OTLP over HTTP (extra ``otlp``)."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from embodyflow import __version__
from embodyflow.errors import ConfigError
from embodyflow.record.otlp.run_spans import Span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

BATCH = 512
"""Spans of one request."""

INSTALL = "opentelemetry-exporter-otlp-proto-http is not installed; pip install 'embodyflow[otlp]'"

EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
"""Module of the exporter, whose logger has this name."""


class CollectorError(Exception):
    """The collector did not take the spans."""


def check_installed(key: str) -> None:
    """Check that the exporter is installed.

    Args:
        key: Key or option that asks for it, with its value.

    Raises:
        ConfigError: It is missing.
    """
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{key}: {INSTALL}") from error


class SpanSender:
    """Sends spans to a collector, with the headers and the timeout of OpenTelemetry's environment variables.

    Args:
        endpoint: Address of the collector, such as ``http://localhost:4318``.
    """

    def __init__(self, endpoint: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        self._exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces")

    def send(self, spans: Sequence[Span]) -> None:
        """Send at most :data:`BATCH` spans in one request, which is repeated while the collector is busy.

        Raises:
            CollectorError: The collector refused them or did not answer in time.
        """
        from opentelemetry.sdk.trace.export import SpanExportResult

        with _logged_errors() as errors:
            result = self._exporter.export([_readable(span) for span in spans])
        if result is not SpanExportResult.SUCCESS:
            raise CollectorError(errors[0].partition(" encountered")[0])  # later ones are of its retries

    def close(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def _logged_errors() -> Iterator[list[str]]:
    """Collect what the exporter logs in the block in place of a log; it says why an export failed."""
    logger, handler = logging.getLogger(EXPORTER), _Errors()
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield handler.messages
    finally:
        logger.propagate = True
        logger.removeHandler(handler)


def _readable(span: Span) -> "ReadableSpan":
    """Return a span as OpenTelemetry's exporter reads it; times are in ns."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

    def context(span_id: int) -> SpanContext:
        return SpanContext(span.trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    return ReadableSpan(
        span.name,
        context(span.span_id),
        None if span.parent_id is None else context(span.parent_id),
        Resource(span.resource),
        span.attributes,
        status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
        start_time=span.begin * 1000,
        end_time=span.end * 1000,
        instrumentation_scope=InstrumentationScope("embodyflow", __version__),
    )

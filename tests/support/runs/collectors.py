"""A collector of OpenTelemetry: an HTTP server that decodes what it gets."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class Received:
    """A span as the collector got it, ids in hex and times in ns."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    begin: int
    end: int
    error: str
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass
class Collector:
    """What a collector got.

    Attributes:
        address: Its address.
        status: Status of its next answers.
        spans: Spans of the requests that it answered with 200.
        headers: Headers of the requests.
        num_requests: Number of requests.
    """

    address: str = ""
    status: int = 200
    spans: list[Received] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    num_requests: int = 0

    def named(self, name: str) -> list[Received]:
        """Return the spans of a name, by their begin."""
        return sorted((each for each in self.spans if each.name == name), key=lambda each: each.begin)

    def by_id(self) -> dict[str, Received]:
        """Return the spans by id; fail if an id came twice."""
        found = {each.span_id: each for each in self.spans}
        assert len(found) == len(self.spans)
        return found

    def parent(self, span: Received) -> Received:
        return self.by_id()[span.parent_id]


@contextmanager
def collector() -> Iterator[Collector]:
    """Run a collector within the block."""
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.headers.append(dict(self.headers))
            found.num_requests += 1
            if found.status == 200:
                assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
                found.spans += decoded(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(found.status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def decoded(body: bytes) -> Iterator[Received]:
    """Yield the spans of a request."""
    request = ExportTraceServiceRequest.FromString(body)
    for of_resource in request.resource_spans:
        resource = values_of(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            assert of_scope.scope.name == "embodyflow"
            for span in of_scope.spans:
                assert len(span.trace_id) == 16 and len(span.span_id) == 8
                yield Received(
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.name,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    span.status.message if span.status.code == 2 else "",
                    values_of(span.attributes),
                    resource,
                )


def values_of(attributes: Any) -> dict[str, Any]:
    """Return attributes as Python values."""
    found = {}
    for each in attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        found[each.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found

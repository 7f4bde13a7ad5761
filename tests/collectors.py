"""OpenTelemetry collectors for tests: real servers that decode what they are sent, and one that never answers."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

LIMIT_S = 20.0


class Span:
    """A span as it arrived."""

    def __init__(self, span: Any, resource: dict[str, Any]) -> None:
        self.name: str = span.name
        self.kind: int = span.kind
        self.trace_id: str = span.trace_id.hex()
        self.span_id: str = span.span_id.hex()
        self.parent_id: str = span.parent_span_id.hex()
        self.start, self.end = span.start_time_unix_nano, span.end_time_unix_nano
        self.attributes = attributes(span.attributes)
        self.events = {event.name: event.time_unix_nano for event in span.events}
        self.links = [(link.trace_id.hex(), link.span_id.hex()) for link in span.links]
        self.failed = span.status.code == 2
        self.resource = resource


def attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None


class Received:
    """What has come so far; ``wait`` returns once something is so."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.metrics: dict[str, Any] = {}
        self.raw = b""
        self.calls = 0
        self._changed = threading.Condition()

    def take_traces(self, data: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(data)
        with self._changed:
            self.raw += data
            self.calls += 1
            for group in request.resource_spans:
                resource = attributes(group.resource.attributes)
                self.spans += [Span(span, resource) for scope in group.scope_spans for span in scope.spans]
            self._changed.notify_all()

    def take_metrics(self, data: bytes) -> None:
        request = ExportMetricsServiceRequest.FromString(data)
        with self._changed:
            for group in request.resource_metrics:
                self.metrics.update({each.name: each for scope in group.scope_metrics for each in scope.metrics})
            self._changed.notify_all()

    def note_call(self) -> None:
        with self._changed:
            self.calls += 1
            self._changed.notify_all()

    def wait(self, holds: Callable[[Received], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: holds(self), LIMIT_S), "the collector did not get it"

    def trace(self, request_id: str) -> list[Span]:
        """Return one request's spans by the id that its answer had, as soon as they are there, its own first."""
        roots: list[Span] = []

        def has_come(received: Received) -> bool:
            roots[:] = [s for s in received.spans if s.attributes.get("paceline.request.id") == request_id]
            return bool(roots)

        self.wait(has_come)
        spans = [each for each in self.spans if each.trace_id == roots[0].trace_id]
        return sorted(spans, key=lambda each: (each is not roots[0], each.start))


class HttpCollector(Received):
    """Takes OTLP over HTTP."""

    def __init__(self) -> None:
        super().__init__()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["content-length"]))
                (collector.take_metrics if self.path == "/v1/metrics" else collector.take_traces)(data)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class GrpcCollector(Received):
    """Takes OTLP over gRPC."""

    def __init__(self) -> None:
        super().__init__()
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        for service, take, answer in (
            ("trace.v1.TraceService", self.take_traces, ExportTraceServiceResponse),
            ("metrics.v1.MetricsService", self.take_metrics, ExportMetricsServiceResponse),
        ):
            self._serve(f"opentelemetry.proto.collector.{service}", take, answer)
        self.url = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _serve(self, service: str, take: Callable[[bytes], None], answer: Any) -> None:
        def export(data: bytes, _: grpc.ServicerContext) -> Any:
            take(data)
            return answer()

        method = grpc.unary_unary_rpc_method_handler(export, lambda data: data, answer.SerializeToString)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": method}),))

    def stop(self) -> None:
        self._server.stop(None).wait()


class FrozenCollector(Received):
    """Accepts connections, reads nothing and never answers."""

    def __init__(self) -> None:
        super().__init__()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._held: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                self._held.append(self._listener.accept()[0])
            except OSError:
                return
            self.note_call()

    def stop(self) -> None:
        with contextlib.suppress(OSError):  # not every system ends an accept that waits like this
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._held:
            connection.close()

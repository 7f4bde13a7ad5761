"""The way to an OpenTelemetry collector, with OpenTelemetry's own exporters. Importing this takes half a second."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Sequence
from typing import Any, Final

from opentelemetry.sdk.environment_variables import OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME
from opentelemetry.sdk.metrics import Exemplar as SdkExemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as SdkHistogram
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from gateway import __version__
from gateway.settings_telemetry import OtlpProtocol
from gateway.telemetry.conventions import Conventions
from gateway.telemetry.family import Exemplar, Family, Form, Histogram
from gateway.telemetry.span import Kind, Span

_KINDS: Final = {Kind.INTERNAL: SpanKind.INTERNAL, Kind.SERVER: SpanKind.SERVER, Kind.CLIENT: SpanKind.CLIENT}
_SCOPE: Final = InstrumentationScope("paceline", __version__)
_FINE: Final = frozenset({"done", "cancelled"})
_ATTRIBUTES: Final = {
    "operation": "gen_ai.operation.name",
    "model": "gen_ai.request.model",
    "deployment": "paceline.deployment",
    "precision": "paceline.precision",
    "token_type": "gen_ai.token.type",
}
"""OpenTelemetry's names for the labels that have one; others keep theirs, with ``paceline.`` before it."""


class Collector:
    """One collector. ``address`` is its base address: HTTP's paths are added, as OpenTelemetry's variable has it."""

    def __init__(self, address: str, protocol: OtlpProtocol, conventions: Conventions) -> None:
        self._address = address
        self._spans, self._metrics = _exporters(address, protocol)
        self._resource = _resource()
        self._start_ns = time.time_ns()
        self._conventions = conventions
        self._closed = False
        # They tell each try on its own; whoever sends tells once a minute what has become of all of them.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)

    def __str__(self) -> str:
        return f"the collector at {self._address}"

    def spans(self, spans: Sequence[Span]) -> bool:
        """Send spans. Blocks as long as OpenTelemetry's exporter tries, ten seconds unless configured."""
        result: SpanExportResult = self._spans.export([self._span(each) for each in spans])
        return result is SpanExportResult.SUCCESS

    def metrics(self, families: Sequence[Family]) -> bool:
        """Send metrics, as ``spans`` does."""
        now = time.time_ns()
        metrics = [self._metric(each, now) for each in families if each.points]
        scope = ScopeMetrics(_SCOPE, metrics, "")
        result: MetricExportResult = self._metrics.export(MetricsData([ResourceMetrics(self._resource, [scope], "")]))
        return result is MetricExportResult.SUCCESS

    def close(self) -> None:
        """End a call that is under way. Idempotent."""
        if not self._closed:
            self._closed = True
            self._spans.shutdown()
            self._metrics.shutdown()

    def _span(self, span: Span) -> ReadableSpan:
        return ReadableSpan(
            span.name,
            context=_context(span.trace_id, span.span_id),
            parent=_context(span.trace_id, span.parent_id) if span.parent_id else None,
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(each.name, each.attributes, each.at_ns) for each in span.events],
            links=[Link(_context(each.trace_id, each.span_id), each.attributes) for each in span.links],
            kind=_KINDS[span.kind],
            status=Status(StatusCode.ERROR, span.why) if span.failed else Status(),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=_SCOPE,
        )

    def _metric(self, family: Family, now: int) -> Metric:
        data: SdkHistogram | Sum | Gauge
        if family.form is Form.HISTOGRAM:
            data = SdkHistogram(
                [self._histogram(family, labels, each, now) for labels, each in family.points],  # type: ignore[arg-type]
                AggregationTemporality.CUMULATIVE,
            )
        else:
            points = [
                NumberDataPoint(self._attributes(family, labels), self._start_ns, now, value)  # type: ignore[arg-type]
                for labels, value in family.points
            ]
            is_sum = family.form is Form.COUNTER
            data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True) if is_sum else Gauge(points)
        return Metric(family.name, family.help, family.unit, data)

    def _histogram(self, family: Family, labels: Sequence[str], each: Histogram, now: int) -> HistogramDataPoint:
        return HistogramDataPoint(
            attributes=self._attributes(family, labels),
            start_time_unix_nano=self._start_ns,
            time_unix_nano=now,
            count=each.count,
            sum=each.sum,
            bucket_counts=each.counts,
            explicit_bounds=each.bounds,
            min=None,  # type: ignore[arg-type]  # optional in the protocol; over a process's life it says nothing
            max=None,  # type: ignore[arg-type]
            exemplars=[_exemplar(exemplar) for exemplar in each.exemplars.values()],
        )

    def _attributes(self, family: Family, labels: Sequence[str]) -> dict[str, str]:
        attributes = {}
        for name, value in zip(family.labels, labels, strict=True):
            if not value:
                continue
            if name == "engine":
                attributes.update(dict.fromkeys(self._provider(), value))
                continue
            attributes[_ATTRIBUTES.get(name, f"paceline.{name}")] = value
            if name == "outcome" and value not in _FINE:
                attributes["error.type"] = value
        return attributes

    def _provider(self) -> Sequence[str]:
        old, new = self._conventions
        return [name for name, used in (("gen_ai.system", old), ("gen_ai.provider.name", new)) if used]


def _exporters(address: str, protocol: OtlpProtocol) -> tuple[Any, Any]:
    if protocol is OtlpProtocol.GRPC:
        from opentelemetry.exporter.otlp.proto.grpc import metric_exporter, trace_exporter

        return trace_exporter.OTLPSpanExporter(address), metric_exporter.OTLPMetricExporter(address)
    from opentelemetry.exporter.otlp.proto.http import metric_exporter as http_metrics
    from opentelemetry.exporter.otlp.proto.http import trace_exporter as http_traces

    base = address.rstrip("/")
    return http_traces.OTLPSpanExporter(f"{base}/v1/traces"), http_metrics.OTLPMetricExporter(f"{base}/v1/metrics")


def _resource() -> Resource:
    """Who sends this; what the operator says in OpenTelemetry's variables comes first."""
    attributes = {"service.version": __version__, "service.instance.id": secrets.token_hex(8)}
    if not os.environ.get(OTEL_SERVICE_NAME) and "service.name=" not in os.environ.get(OTEL_RESOURCE_ATTRIBUTES, ""):
        attributes["service.name"] = "paceline"
    return Resource.create(attributes)


def _context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _exemplar(exemplar: Exemplar) -> SdkExemplar:
    span_id, trace_id = int(exemplar.span_id, 16), int(exemplar.trace_id, 16)
    return SdkExemplar({}, exemplar.value, exemplar.at_ns, span_id=span_id, trace_id=trace_id)

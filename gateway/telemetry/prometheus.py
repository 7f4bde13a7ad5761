"""Metrics as Prometheus reads them: its text format, or OpenMetrics with exemplars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Exemplar as PrometheusExemplar

from gateway.telemetry.family import Exemplar, Family, Form, Histogram

_SUFFIXES = {"s": "_seconds", "1": "_ratio"}


def page(families: Sequence[Family], accept: str) -> tuple[bytes, str]:
    """Return the page in the form that an ``Accept`` header asks for, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Given(families))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def prometheus_name(family: Family) -> str:
    """Return a family's name in Prometheus, which for a counter has ``_total`` behind it in its samples."""
    return family.name.replace(".", "_") + _SUFFIXES.get(family.unit, "")


class _Given(Collector):
    """Hands out what was collected before."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are known to be distinct."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Return all families."""
        for family in self._families:
            yield _metric(family)


def _metric(family: Family) -> Metric:
    name = prometheus_name(family)
    if family.form is Form.HISTOGRAM:
        histogram = HistogramMetricFamily(name, family.help, labels=family.labels)
        for labels, value in family.points:
            assert isinstance(value, Histogram)
            # It knows what Prometheus' exemplars look like in a list, though its annotation does not say so.
            histogram.add_metric(labels, _buckets(value), value.sum)  # type: ignore[arg-type]
        return histogram
    kind = CounterMetricFamily if family.form is Form.COUNTER else GaugeMetricFamily
    metric = kind(name, family.help, labels=family.labels)
    for labels, value in family.points:
        assert not isinstance(value, Histogram)
        metric.add_metric(labels, value)
    return metric


def _buckets(histogram: Histogram) -> list[tuple[str, float, PrometheusExemplar | None]]:
    below = 0
    buckets = []
    for index, (bound, count) in enumerate(zip((*histogram.bounds, math.inf), histogram.counts, strict=True)):
        below += count
        exemplar = histogram.exemplars.get(index)
        buckets.append(
            (
                "+Inf" if bound == math.inf else str(bound),
                float(below),
                None if exemplar is None else _exemplar(exemplar),
            )
        )
    return buckets


def _exemplar(exemplar: Exemplar) -> PrometheusExemplar:
    labels = {"trace_id": exemplar.trace_id, "span_id": exemplar.span_id}
    return PrometheusExemplar(labels, exemplar.value, exemplar.at_ns / 1e9)

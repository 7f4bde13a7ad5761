"""Metrics as plain values at one moment: what Prometheus and a collector are given alike."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from enum import Enum
from time import time_ns
from typing import NamedTuple

from gateway.telemetry.trace import Trace


class Form(Enum):
    """How numbers of one name are to be read."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Exemplar(NamedTuple):
    """One observation, with the trace that shows it whole."""

    value: float
    trace_id: str
    span_id: str
    at_ns: int


class Histogram:
    """Counts observations by bounds; the last bucket has none. Remembers one exemplar a bucket."""

    __slots__ = ("bounds", "counts", "exemplars", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.exemplars: dict[int, Exemplar] = {}

    def observe(self, value: float, trace: Trace | None = None) -> None:
        """Count one observation; ``trace`` is one that is kept."""
        index = bisect_left(self.bounds, value)
        self.counts[index] += 1
        self.sum += value
        if trace is not None:
            self.exemplars[index] = Exemplar(value, trace.trace_id, trace.span_id, time_ns())

    def copy(self) -> Histogram:
        """Return it as it is now."""
        copied = Histogram(self.bounds)
        copied.counts, copied.sum, copied.exemplars = self.counts[:], self.sum, dict(self.exemplars)
        return copied

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)


class Point(NamedTuple):
    """One combination of labels: their values, in the order of the family's labels, and the number."""

    labels: tuple[str, ...]
    value: float | Histogram


class Family(NamedTuple):
    """All points of one name. ``name`` is OpenTelemetry's, with dots; ``unit`` is "s", "1" (a ratio), "{token}", …

    ``labels`` are Prometheus' names; ``gateway.telemetry.otlp`` has OpenTelemetry's for each of them.
    """

    name: str
    form: Form
    unit: str
    help: str
    labels: tuple[str, ...]
    points: list[Point]

"""Telemetry as the house has it: told of each request at its beginning for a trace, and at its end for the rest."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from adapters.body import PROMPT_FIELD
from gateway.settings_errors import Problem, SettingsError
from gateway.settings_telemetry import ENDPOINT_VARIABLE, TelemetrySettings
from gateway.telemetry.content import Content, Patterns
from gateway.telemetry.conventions import Conventions
from gateway.telemetry.current import CURRENT, Current
from gateway.telemetry.family import Family, Form, Point
from gateway.telemetry.gauges import gauges
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.sampling import Sampling
from gateway.telemetry.shipper import MOST_WAITING, Outlet, Shipper, Trail
from gateway.telemetry.spans import Spans
from gateway.telemetry.trace import Trace, parent_of

logger = logging.getLogger("paceline.telemetry")

if TYPE_CHECKING:
    from gateway.errors import ApiError
    from gateway.exchange import Exchange
    from gateway.house import House
    from policies.types import Operation

_MOST_WAITING_WITH_TEXT: Final = 128
_FRAMING: Final = 16
"""A stream's bytes for each of its text's."""


class Telemetry:
    """Makes traces and counts. Raises ``SettingsError`` where a collector is configured that cannot be spoken to.

    With nobody to see traces there are none, and a caller's ``traceparent`` goes on to the engine as it is.
    """

    def __init__(self, settings: TelemetrySettings, house: House, *, sends: bool = True) -> None:
        self._settings = settings
        self._house = house
        self._conventions = Conventions.chosen()
        self._sampling = Sampling(settings.sample, settings.slow_s)
        self._hide = Patterns(settings.redact)
        self._collector = _collector(settings) if sends else ""
        is_traced = sends and (settings.console or bool(self._collector))
        self.content_limit = settings.content_limit * _FRAMING if settings.content and is_traced else 0
        """How much of each answer is wanted, in bytes of its stream."""
        self._metrics: Metrics | None = None
        self._shipper: Shipper | None = None
        if settings.metrics or self._collector:
            self._metrics = Metrics(house.fleet, self._conventions)
        if is_traced:
            most = _MOST_WAITING_WITH_TEXT if settings.content else MOST_WAITING
            self._shipper = Shipper(self._outlets, most)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def watches(self) -> bool:
        """Whether it wants to be told of requests at all."""
        return self._metrics is not None or self._shipper is not None

    def start(self) -> None:
        """Begin to send, where there is anybody to send to."""
        if self._shipper is not None:
            self._shipper.start()
        if self._collector:
            self._report_later()

    async def aclose(self) -> None:
        """Send what is left, for a moment at most."""
        if self._timer is not None:
            self._timer.cancel()
        if self._shipper is not None:
            if self._collector:
                self._shipper.offer(self.families())
            await self._shipper.aclose()

    def begin(self, request_id: str, headers: Mapping[bytes, bytes]) -> Trace | None:
        """A request has arrived: return its place in a trace, ``None`` when nobody wants one. Its log lines say it."""
        if self._shipper is not None:
            trace = Trace.begin(headers, self._sampling.below)
            CURRENT.set(Current(request_id, trace.trace_id))
            return trace
        parent = parent_of(headers)
        CURRENT.set(Current(request_id, "" if parent is None else parent[0]))
        return None

    def ended(self, exchange: Exchange) -> None:
        """A request has ended."""
        kept: Trace | None = None
        trace = exchange.trace
        if trace is not None and self._shipper is not None and (why := self._sampling.why(exchange)):
            kept = trace
            now = asyncio.get_running_loop().time()
            spans = Spans(exchange, trace, why, self._conventions, now).all()
            self._shipper.offer(Trail(spans, self._content(exchange)))
        if self._metrics is not None:
            self._metrics.ended(exchange, kept)

    def refused(self, operation: Operation, error: ApiError) -> None:
        """A request was refused before it was read."""
        if self._metrics is not None:
            self._metrics.refused(operation, error)

    def families(self) -> list[Family]:
        """Return all metrics as they are now; to be called in the event loop."""
        house = self._house
        statistics = house.caching.stores.statistics if house.caching is not None else None
        families = gauges(house.fleet, house.admission, house.experiments.stops, statistics)
        if self._metrics is not None:
            families += self._metrics.families()
        if self._shipper is not None:
            points = [Point((), float(self._shipper.dropped))]
            help_ = "Traces that could not be sent."
            families.append(Family("paceline.telemetry.dropped", Form.COUNTER, "{trace}", help_, (), points))
        return families

    def _content(self, exchange: Exchange) -> Content | None:
        if not self.content_limit:
            return None
        incoming, limit = exchange.incoming, self.content_limit
        prompt = incoming.body.raw(PROMPT_FIELD[incoming.operation]) or b""
        return Content(
            incoming.operation,
            prompt[:limit],
            exchange.said,
            self._hide,
            self._settings.content_limit,
            streamed=incoming.stream,
        )

    def _report_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._settings.metrics_every_s, self._report)

    def _report(self) -> None:
        if self._shipper is not None:
            self._shipper.offer(self.families())
        self._report_later()

    def _outlets(self) -> Sequence[Outlet]:
        outlets: list[Outlet] = []
        if self._settings.console:
            from gateway.telemetry.console import Console

            outlets.append(Console())
        if self._collector:
            from gateway.telemetry.otlp import Collector

            outlets.append(Collector(self._collector, self._settings.speaks, self._conventions))
        return outlets


def _collector(settings: TelemetrySettings) -> str:
    """Return the collector's address, "" without one.

    Raises ``SettingsError`` for one that cannot be spoken to; one that only the environment names is left out then.
    """
    address = settings.collector
    if not address or _has_sdk():
        return address
    if settings.endpoint:
        fix = "Install paceline[telemetry]."
        raise SettingsError([Problem("telemetry.endpoint", "is set, but what speaks to a collector is absent", fix)])
    logger.warning("%s is set, but nothing is sent: paceline[telemetry] is not installed", ENDPOINT_VARIABLE)
    return ""


def _has_sdk() -> bool:
    """Whether `paceline[telemetry]` is installed; looks, and imports next to nothing."""
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False

"""A request's spans, made from what it has left behind at its end."""

from __future__ import annotations

import time
from typing import Any, Final
from urllib.parse import urlsplit

from adapters.base import Outcome
from adapters.body import BodyError
from adapters.errors import Interrupted, Loading, TimedOut, Unreachable
from gateway.attempt import Attempt
from gateway.exchange import Exchange
from gateway.openapi import PATHS
from gateway.telemetry.conventions import Conventions
from gateway.telemetry.span import Attributes, Event, Kind, Link, Span
from gateway.telemetry.trace import Trace, new_span_id
from policies.types import Decision, Operation

OPERATIONS: Final = {
    Operation.CHAT: "chat",
    Operation.COMPLETION: "text_completion",
    Operation.EMBEDDINGS: "embeddings",
}
"""``gen_ai.operation.name``."""

_SAMPLING_FIELDS: Final = (("temperature", float), ("top_p", float), ("seed", int))
_SHORTEST_WAIT_S: Final = 0.001
"""A wait that is worth a span."""
_OURS: Final = (Unreachable, Loading, TimedOut, Interrupted)
"""Errors whose words are our own; an engine's may repeat what it was asked."""
_MOST_CANDIDATES: Final = 32
_LEFT: Final = 499
"""The status of an answer that its client did not wait for, as access logs have it."""


class Spans:
    """Makes them. ``now_s`` is the event loop's clock at this moment, from which the others are told."""

    def __init__(self, exchange: Exchange, trace: Trace, kept: str, conventions: Conventions, now_s: float) -> None:
        self._exchange = exchange
        self._trace = trace
        self._kept = kept
        self._conventions = conventions
        self._zero_ns = time.time_ns() - int(now_s * 1e9)

    def all(self) -> list[Span]:
        """Return all spans, the request's own first, the attempts last in their order."""
        exchange = self._exchange
        spans = [self._request()]
        begun = exchange.arrived_at + exchange.read_s
        if exchange.waited_s >= _SHORTEST_WAIT_S:
            spans.append(self._inner("queue", begun, begun + exchange.waited_s))
        begun += exchange.waited_s
        if exchange.cache != b"off":
            spans.append(self._lookup(begun))
        begun += exchange.lookup_s
        if exchange.decision is not None:
            spans.append(self._route(exchange.decision, min(begun, exchange.routed_at)))
        spans += [self._attempt(number, each) for number, each in enumerate(exchange.tries, 1)]
        return spans

    def _at(self, seconds: float) -> int:
        return self._zero_ns + int(seconds * 1e9)

    def _span(self, name: str, span_id: str, parent_id: str, start: float, end: float, kind: Kind) -> Span:
        return Span(name, self._trace.trace_id, span_id, parent_id, self._at(start), self._at(end), kind)

    def _inner(self, name: str, start: float, end: float) -> Span:
        return self._span(name, new_span_id(), self._trace.span_id, start, end, Kind.INTERNAL)

    def _request(self) -> Span:
        exchange, trace = self._exchange, self._trace
        path = PATHS[exchange.incoming.operation]
        name = f"POST {path}"
        span = self._span(name, trace.span_id, trace.parent_id, exchange.arrived_at, exchange.ended_at, Kind.SERVER)
        status = _status(exchange)
        span.attributes = {
            "http.request.method": "POST",
            "http.route": path,
            "url.path": path,
            "http.response.status_code": status,
            "paceline.request.id": exchange.request_id,
            "paceline.outcome": exchange.ended,
            "paceline.attempts": exchange.attempts,
            "paceline.cache.result": exchange.cache.decode(),
            "paceline.trace.kept": self._kept,
        }
        if exchange.wishes.outside:
            span.attributes["paceline.stage.outside_ms"] = _ms(sum(spent_s for _, spent_s in exchange.wishes.outside))
        if exchange.read_s >= _SHORTEST_WAIT_S:
            span.attributes["paceline.stage.read_ms"] = _ms(exchange.read_s)
        if exchange.client_s >= _SHORTEST_WAIT_S:
            span.attributes["paceline.stage.client_ms"] = _ms(exchange.client_s)
        if exchange.leader is not None:
            leader = exchange.leader
            span.links.append(Link(leader.trace_id, leader.span_id, {"paceline.link": "shares the call of"}))
        if exchange.error is not None and exchange.error.code:
            span.attributes["paceline.error.code"] = exchange.error.code
        if status >= 500 or (exchange.ended == "failed" and status == 200):
            span.failed = True
            last = exchange.tries[-1].error if exchange.tries else None
            span.attributes["error.type"] = type(last).__name__ if last is not None else str(status)
        return span

    def _lookup(self, begun: float) -> Span:
        exchange = self._exchange
        span = self._inner("cache lookup", begun, begun + exchange.lookup_s)
        span.attributes["paceline.cache.result"] = exchange.cache.decode()
        if exchange.cache_key:
            span.attributes["paceline.cache.key"] = exchange.cache_key.decode()
        return span

    def _route(self, decision: Decision, begun: float) -> Span:
        span = self._inner("route", begun, self._exchange.routed_at)
        candidates = decision.candidates[:_MOST_CANDIDATES]
        attributes = span.attributes
        attributes["paceline.route.rule"] = decision.rule
        if decision.chosen is not None:
            attributes["paceline.route.reason"] = decision.chosen.reason
            attributes["paceline.route.chosen"] = decision.chosen.deployment.id
        attributes["paceline.route.candidates"] = tuple(each.deployment.id for each in candidates)
        estimates = [each.estimate for each in candidates]
        attributes["paceline.route.predicted_ttft_s"] = tuple(
            -1.0 if e is None else round(e.ttft_s, 4) for e in estimates
        )
        attributes["paceline.route.predicted_total_s"] = tuple(
            -1.0 if e is None else round(e.total_s, 4) for e in estimates
        )
        attributes["paceline.route.rejected"] = tuple(
            f"{each.deployment.id}: {each.code}" for each in decision.rejected[:_MOST_CANDIDATES]
        )
        attributes["paceline.prompt_tokens.estimated"] = self._exchange.facts.prompt_tokens
        return span

    def _attempt(self, number: int, attempt: Attempt) -> Span:
        exchange = self._exchange
        operation = OPERATIONS[exchange.incoming.operation]
        name, ended_at = f"{operation} {exchange.facts.model}", attempt.ended_at or exchange.ended_at
        span = self._span(name, attempt.span_id, self._trace.span_id, attempt.chosen_at, ended_at, Kind.CLIENT)
        span.attributes = self._asked(operation, attempt)
        attributes = span.attributes
        attributes["paceline.attempt"] = number
        if number > 1 and (cause := exchange.tries[number - 2].error) is not None:
            attributes["paceline.attempt.cause"] = type(cause).__name__
        if attempt.started_at - attempt.chosen_at >= _SHORTEST_WAIT_S:
            attributes["paceline.stage.wait_for_load_ms"] = _ms(attempt.started_at - attempt.chosen_at)
        if not attempt.ended_at:
            attributes["paceline.attempt.continues"] = True  # for others, who wait for the same answer
        if attempt.opened_at:
            span.events.append(Event("response head", self._at(attempt.opened_at)))
        outcome = attempt.outcome
        if outcome is not None:
            self._answered(span, outcome, attempt)
        error = attempt.error
        if error is not None:
            span.failed = True
            span.attributes["error.type"] = type(error).__name__
            span.why = error.message if isinstance(error, _OURS) else ""
        return span

    def _asked(self, operation: str, attempt: Attempt) -> Attributes:
        exchange, deployment = self._exchange, attempt.candidate.deployment
        attributes: Attributes = {"gen_ai.operation.name": operation}
        if self._conventions.old:
            attributes["gen_ai.system"] = deployment.engine
        if self._conventions.new:
            attributes["gen_ai.provider.name"] = deployment.engine
        attributes["gen_ai.request.model"] = exchange.facts.model
        attributes["paceline.deployment"] = deployment.id
        attributes["paceline.precision"] = deployment.precision.value
        if exchange.incoming.max_output is not None:
            attributes["gen_ai.request.max_tokens"] = exchange.incoming.max_output
        for name, type_ in _SAMPLING_FIELDS:
            value = _field(exchange, name, type_)
            if value is not None:
                attributes[f"gen_ai.request.{name}"] = value
        stop = _field(exchange, "stop", str | list[str])
        if stop:
            attributes["gen_ai.request.stop_sequences"] = (stop,) if isinstance(stop, str) else tuple(stop)
        address = urlsplit(attempt.engine.source.url)
        if address.hostname:
            attributes["server.address"] = address.hostname
            attributes["server.port"] = address.port or (443 if address.scheme == "https" else 80)
        estimate = attempt.candidate.estimate
        if estimate is not None:
            attributes["paceline.predicted.ttft_ms"] = _ms(estimate.ttft_s)
            attributes["paceline.predicted.total_ms"] = _ms(estimate.total_s)
        return attributes

    def _answered(self, span: Span, outcome: Outcome, attempt: Attempt) -> None:
        attributes = span.attributes
        if outcome.first_token_at is not None:
            span.events.append(Event("first token", self._at(outcome.first_token_at)))
            attributes["gen_ai.response.time_to_first_chunk"] = round(outcome.first_token_at - attempt.started_at, 6)
        if outcome.response_id:
            attributes["gen_ai.response.id"] = outcome.response_id
        attributes["gen_ai.response.model"] = attempt.candidate.deployment.engine_model
        if outcome.finish_reason:
            attributes["gen_ai.response.finish_reasons"] = (outcome.finish_reason,)
        for name, tokens in (
            ("input_tokens", outcome.prompt_tokens),
            ("output_tokens", outcome.output_tokens),
            ("cache_read.input_tokens", outcome.cached_tokens),
        ):
            if tokens is not None:
                attributes[f"gen_ai.usage.{name}"] = tokens
        for stage in ("queue", "load", "prefill", "decode"):
            seconds = getattr(outcome, f"{stage}_s")
            if seconds is not None:
                attributes[f"paceline.stage.{stage}_ms"] = _ms(seconds)


def _status(exchange: Exchange) -> int:
    if exchange.error is not None:
        return exchange.error.status
    return _LEFT if exchange.ended == "cancelled" else 200


def _field(exchange: Exchange, name: str, type_: Any) -> Any:
    body = exchange.incoming.body
    if name not in body:
        return None
    try:
        return body.get(name, type_)
    except BodyError:
        return None  # the engine has said what it thinks of it


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)

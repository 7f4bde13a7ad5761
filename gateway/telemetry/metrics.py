"""What is counted of each request, at its end: a few list elements, whatever the number of readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from adapters.base import Outcome
from gateway.attempt import Attempt
from gateway.errors import ApiError
from gateway.exchange import Exchange
from gateway.fleet import Fleet
from gateway.telemetry import buckets
from gateway.telemetry.conventions import Conventions
from gateway.telemetry.family import Family, Form, Histogram, Point
from gateway.telemetry.spans import OPERATIONS
from gateway.telemetry.trace import Trace
from policies.types import Deployment, Operation

LABELS: Final = ("operation", "model", "deployment", "engine", "precision", "outcome")
MOST_SERIES: Final = 1000
"""Combinations of labels that are told apart; what comes beyond is counted together."""
OTHERS: Final = "(others)"
UNKNOWN: Final = "(unknown)"
"""What a model is called that there is not: a caller may make up any number of names."""

_Key = tuple[str, ...]
_T = TypeVar("_T")


class Series(Generic[_T]):
    """One group of numbers for each combination of labels, a bound number of them."""

    def __init__(self, make: Callable[[], _T]) -> None:
        self._make = make
        self._by_key: dict[_Key, _T] = {}

    def of(self, key: _Key) -> _T:
        """Return a combination's numbers."""
        found = self._by_key.get(key)
        if found is None:
            if len(self._by_key) >= MOST_SERIES:
                key = (OTHERS,) * len(key)
            found = self._by_key.get(key)
            if found is None:
                found = self._by_key[key] = self._make()
        return found

    def __iter__(self) -> Iterator[tuple[_Key, _T]]:
        return iter(self._by_key.items())


class _Requests:
    """Requests as clients see them, alike in all labels."""

    __slots__ = ("duration", "overhead", "tpot", "ttft")

    def __init__(self) -> None:
        self.duration = Histogram(buckets.DURATION_S)
        self.ttft = Histogram(buckets.TTFT_S)
        self.tpot = Histogram(buckets.TPOT_S)
        self.overhead = Histogram(buckets.OVERHEAD_S)


class _Calls:
    """Calls to engines, alike in all labels."""

    __slots__ = ("cached", "duration", "first", "input", "output", "total_error", "tpot", "ttft_error")

    def __init__(self) -> None:
        self.duration = Histogram(buckets.DURATION_S)
        self.first = Histogram(buckets.TTFT_S)
        self.tpot = Histogram(buckets.TPOT_S)
        self.input = Histogram(buckets.TOKENS)
        self.output = Histogram(buckets.TOKENS)
        self.cached = 0
        self.ttft_error = Histogram(buckets.ERROR)
        self.total_error = Histogram(buckets.ERROR)


class _Count:
    """One number."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Metrics:
    """Counts requests. All of it belongs to one event loop; ``families`` is a copy that may leave it."""

    def __init__(self, fleet: Fleet, conventions: Conventions) -> None:
        self._fleet = fleet
        self._conventions = conventions
        self._requests: Series[_Requests] = Series(_Requests)
        self._calls: Series[_Calls] = Series(_Calls)
        self._rules: Series[_Count] = Series(_Count)
        self._cache: Series[_Count] = Series(_Count)
        self._refusals: Series[_Count] = Series(_Count)

    def ended(self, exchange: Exchange, trace: Trace | None) -> None:
        """Count a request that has ended; ``trace`` is its own where it is kept."""
        operation = OPERATIONS[exchange.incoming.operation]
        deployment = exchange.deployment
        if deployment is not None:
            model = deployment.model
            labels = _labels(operation, deployment, exchange.ended)
        else:
            model = self._model(exchange)
            labels = (operation, model, "", "", "", exchange.ended)
        if exchange.ended == "refused" and exchange.error is not None:
            self.refused(exchange.incoming.operation, exchange.error)
        requests = self._requests.of(labels)
        requests.duration.observe(exchange.ended_at - exchange.arrived_at, trace)
        self._cache.of((model, exchange.cache.decode())).value += 1
        if exchange.decision is not None:
            self._rules.of((exchange.decision.rule,)).value += 1
        if not exchange.tries:
            return
        for attempt in exchange.tries:
            self._call(operation, attempt, exchange, trace)
        requests.overhead.observe(max(0.0, exchange.own_s), trace)
        if exchange.first_token_at is not None:
            requests.ttft.observe(exchange.first_token_at - exchange.arrived_at, trace)
            outcome = exchange.tries[-1].outcome
            if outcome is not None and (tpot_s := outcome.tpot_s) is not None:
                requests.tpot.observe(tpot_s, trace)

    def refused(self, operation: Operation, error: ApiError) -> None:
        """Count a refusal; of a request that was refused before it was read, nothing else is counted."""
        self._refusals.of((OPERATIONS[operation], str(error.status), error.code or "")).value += 1

    def _model(self, exchange: Exchange) -> str:
        name = exchange.facts.model or self._fleet.resolve(exchange.incoming.model)[0]
        return name if self._fleet.deployments_of(name) else UNKNOWN

    def _call(self, operation: str, attempt: Attempt, exchange: Exchange, trace: Trace | None) -> None:
        deployment, outcome = attempt.candidate.deployment, attempt.outcome
        calls = self._calls.of(_labels(operation, deployment, _ending(attempt)))
        calls.duration.observe((attempt.ended_at or exchange.ended_at) - attempt.started_at, trace)
        if outcome is None:
            return
        if outcome.first_token_at is not None:
            calls.first.observe(outcome.first_token_at - attempt.started_at, trace)
        if (tpot_s := outcome.tpot_s) is not None:
            calls.tpot.observe(tpot_s, trace)
        if outcome.prompt_tokens is not None:
            calls.input.observe(outcome.prompt_tokens, trace)
        if outcome.output_tokens is not None:
            calls.output.observe(outcome.output_tokens, trace)
        calls.cached += outcome.cached_tokens or 0
        if outcome.whole and not attempt.was_cold:
            self._compare(calls, attempt, outcome, exchange, trace)

    def _compare(
        self, calls: _Calls, attempt: Attempt, outcome: Outcome, exchange: Exchange, trace: Trace | None
    ) -> None:
        """How far off the prediction was, for as many tokens as were written."""
        predicted = attempt.candidate.estimate
        if predicted is None or predicted.ttft_s <= 0 or outcome.first_token_at is None:
            return
        ttft_s = outcome.first_token_at - attempt.chosen_at
        calls.ttft_error.observe(abs(ttft_s / predicted.ttft_s - 1.0), trace)
        expected, written = exchange.facts.expected_output, outcome.output_tokens
        if expected > 1 and written and attempt.ended_at:
            total_s = predicted.ttft_s + predicted.decode_s * written / expected
            calls.total_error.observe(abs((attempt.ended_at - attempt.chosen_at) / total_s - 1.0), trace)

    # --- as they are now

    def families(self) -> list[Family]:
        """Return all that was counted."""
        requests = [(key, each) for key, each in self._requests]
        calls = [(key, each) for key, each in self._calls]

        def of_requests(name: str, help_: str, take: Callable[[_Requests], Histogram]) -> Family:
            return _histograms(name, "s", help_, LABELS, [(key, take(each)) for key, each in requests])

        def of_calls(name: str, unit: str, help_: str, take: Callable[[_Calls], Histogram]) -> Family:
            return _histograms(name, unit, help_, LABELS, [(key, take(each)) for key, each in calls])

        ttft_errors = [((*key[:5], "ttft"), each.ttft_error) for key, each in calls]
        total_errors = [((*key[:5], "total"), each.total_error) for key, each in calls]
        families = [
            of_requests("paceline.request.duration", "From a request's arrival to its end.", lambda r: r.duration),
            of_requests("paceline.request.ttft", "From a request's arrival to its first token.", lambda r: r.ttft),
            of_requests("paceline.request.tpot", "Time per output token after the first.", lambda r: r.tpot),
            of_requests(
                "paceline.overhead", "The gateway's own time until a request went to an engine.", lambda r: r.overhead
            ),
            of_calls("paceline.call.duration", "s", "One call to an engine, retries apart.", lambda c: c.duration),
            _histograms(
                "paceline.route.prediction_error",
                "1",
                "How far off a prediction was, as a part of it; total for as many tokens as were written.",
                (*LABELS[:5], "stage"),
                [each for each in ttft_errors + total_errors if each[1].count],
            ),
            _counts(
                "paceline.route.decisions",
                "{request}",
                "Routing decisions by the rule that decided.",
                ("reason",),
                [(key, each.value) for key, each in self._rules],
            ),
            _counts(
                "paceline.request.refusals",
                "{request}",
                "Requests that no engine was asked for, those included that were refused before they were read.",
                ("operation", "status", "reason"),
                [(key, each.value) for key, each in self._refusals],
            ),
            _counts(
                "paceline.cache.requests",
                "{request}",
                "Requests by what the cache did for them.",
                ("model", "result"),
                [(key, each.value) for key, each in self._cache],
            ),
            _counts(
                "paceline.call.tokens",
                "{token}",
                "Tokens of calls to engines: read (input), of these held from before (cached), written (output).",
                (*LABELS, "token_type"),
                [
                    ((*key, kind), value)
                    for key, each in calls
                    for kind, value in (
                        ("input", each.input.sum),
                        ("cached", each.cached),
                        ("output", each.output.sum),
                    )
                ],
            ),
        ]
        if self._conventions.old:
            tokens = [((*key, "input"), each.input) for key, each in calls]
            tokens += [((*key, "output"), each.output) for key, each in calls]
            families += [
                of_requests("gen_ai.server.request.duration", "From arrival to the last byte.", lambda r: r.duration),
                of_requests("gen_ai.server.time_to_first_token", "From arrival to the first token.", lambda r: r.ttft),
                of_requests("gen_ai.server.time_per_output_token", "After the first token.", lambda r: r.tpot),
                of_calls("gen_ai.client.operation.duration", "s", "One call to an engine.", lambda c: c.duration),
                _histograms(
                    "gen_ai.client.token.usage", "{token}", "Tokens of one call.", (*LABELS, "token_type"), tokens
                ),
            ]
        if self._conventions.new:
            families += [
                of_calls("gen_ai.client.inference.duration", "s", "One call to an engine.", lambda c: c.duration),
                of_calls(
                    "gen_ai.client.inference.time_to_first_chunk",
                    "s",
                    "From the call to its first token.",
                    lambda c: c.first,
                ),
                of_calls(
                    "gen_ai.client.inference.time_per_output_chunk", "s", "After the first token.", lambda c: c.tpot
                ),
                _counts(
                    "gen_ai.client.inference.usage.input_tokens",
                    "{token}",
                    "Prompt tokens.",
                    LABELS,
                    [(key, each.input.sum) for key, each in calls],
                ),
                _counts(
                    "gen_ai.client.inference.usage.output_tokens",
                    "{token}",
                    "Output tokens.",
                    LABELS,
                    [(key, each.output.sum) for key, each in calls],
                ),
            ]
        return families


def _histograms(
    name: str, unit: str, help_: str, labels: tuple[str, ...], each: list[tuple[_Key, Histogram]]
) -> Family:
    return Family(name, Form.HISTOGRAM, unit, help_, labels, [Point(key, one.copy()) for key, one in each])


def _counts(name: str, unit: str, help_: str, labels: tuple[str, ...], each: list[tuple[_Key, float]]) -> Family:
    return Family(name, Form.COUNTER, unit, help_, labels, [Point(key, value) for key, value in each])


def _labels(operation: str, deployment: Deployment, outcome: str) -> _Key:
    return operation, deployment.model, deployment.id, deployment.engine, deployment.precision, outcome


def _ending(attempt: Attempt) -> str:
    """``done``, ``cancelled``, or what kind of fault it was."""
    if attempt.error is not None:
        return type(attempt.error).__name__.lower()
    outcome = attempt.outcome
    return "done" if outcome is not None and outcome.whole else "cancelled"

"""What the engine tells Prometheus: what it is doing, what it has done, and how long requests took."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from engine.engine import Load
from engine.events import Done

PREFIX = "paceline_engine_"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)


class Metrics:
    """Counts requests by how they end; ``text`` tells that and an engine's load."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()

        def histogram(name: str, what: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
            return Histogram(f"{PREFIX}{name}_seconds", what, buckets=buckets, registry=self._registry)

        self._ended = Counter(f"{PREFIX}requests", "Requests by how they ended.", ["end"], registry=self._registry)
        self._queue = histogram("queue", "Until a request was admitted.")
        self._prefill = histogram("prefill", "From then until its first token.")
        self._decode = histogram("decode", "From then until its last one.")
        self._token = histogram("time_per_output_token", "Between two tokens of an answer, its mean.", TOKEN_SECONDS)

    def ended(self, done: Done) -> None:
        """A request was served, or cancelled."""
        self._ended.labels(done.finish.value).inc()
        times, tokens = done.timings, done.usage.completion
        self._queue.observe(times.queue_ms / 1000)
        self._prefill.observe(times.prefill_ms / 1000)
        self._decode.observe(times.decode_ms / 1000)
        if tokens > 1:
            self._token.observe(times.decode_ms / 1000 / (tokens - 1))

    def unfinished(self) -> None:
        """A request failed, or its client left."""
        self._ended.labels("unfinished").inc()

    def text(self, load: Load | None) -> bytes:
        """Prometheus' text format; without a load while the model loads."""
        registry = CollectorRegistry()
        registry.register(_Gauges(load))
        return generate_latest(registry) + generate_latest(self._registry)


class _Gauges:
    def __init__(self, load: Load | None) -> None:
        self._load = load

    def collect(self) -> Iterable[Metric]:
        load = self._load
        if load is None:
            return
        used = 1 - load.free_blocks / load.blocks
        for name, what, value in (
            ("requests_running", "Requests that have a place in the cache.", load.running),
            ("requests_waiting", "Requests that wait for one.", load.waiting),
            ("cache_usage_ratio", "Share of the cache's blocks that are in use.", used),
            ("cache_blocks", "Blocks of the cache.", load.blocks),
            ("token_budget", "Positions that a step may compute now.", load.token_budget),
        ):
            yield GaugeMetricFamily(PREFIX + name, what, value)
        for name, what, count in (
            ("steps", "Steps computed.", load.steps),
            ("prompt_tokens", "Tokens of prompts that were read.", load.prompt_tokens),
            ("generated_tokens", "Tokens of answers.", load.generated_tokens),
            ("prefix_asked_tokens", "Tokens looked up in the prefix cache.", load.prefix_asked),
            ("prefix_found_tokens", "Tokens found there.", load.prefix_found),
            ("drafted_tokens", "Tokens guessed ahead.", load.drafted),
            ("accepted_tokens", "Guesses that were right.", load.accepted),
            ("preemptions", "Times that a request lost its place in the cache.", load.preemptions),
        ):
            yield CounterMetricFamily(PREFIX + name, what, count)

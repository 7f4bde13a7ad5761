"""What Prometheus is told of the engine."""

from __future__ import annotations

from asking import end

from adapters.prometheus import read_gauges
from engine.engine import Load
from engine.metrics import Metrics
from engine.request import Finish

LOAD = Load(2, 1, 100, 75, 512, 9, 40, 30, 40, 10, 6, 3, 1)


def test_the_gateway_finds_the_load_in_it() -> None:
    gauges = read_gauges(Metrics().text(LOAD))
    assert gauges.total("paceline_engine_requests_running") == 2
    assert gauges.total("paceline_engine_requests_waiting") == 1
    assert gauges.highest("paceline_engine_cache_usage_ratio") == 0.25
    assert gauges.total("paceline_engine_generated_tokens_total") == 30
    assert gauges.total("paceline_engine_accepted_tokens_total") == 3


def test_requests_are_counted_by_their_end_and_timed() -> None:
    metrics = Metrics()
    metrics.ended(end(Finish.LENGTH))
    metrics.ended(end(completion=1))
    metrics.unfinished()
    text = metrics.text(None).decode()
    for line in ('requests_total{end="length"} 1.0', 'requests_total{end="stop"} 1.0', "prefill_seconds_sum 0.04"):
        assert f"paceline_engine_{line}" in text
    assert 'paceline_engine_requests_total{end="unfinished"} 1.0' in text
    assert "paceline_engine_time_per_output_token_seconds_count 1.0" in text

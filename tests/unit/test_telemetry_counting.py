"""Histograms, the bound on what is told apart, and the logs' ids."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.access_log import AccessLog
from gateway.exchange import Exchange, Wishes
from gateway.incoming import read_request
from gateway.logs import JsonFormatter, TextFormatter
from gateway.telemetry.conventions import VARIABLE, Conventions
from gateway.telemetry.current import CURRENT, Current
from gateway.telemetry.family import Family, Form, Histogram, Point
from gateway.telemetry.metrics import MOST_SERIES, OTHERS, Series
from gateway.telemetry.prometheus import page
from policies.types import Operation


@given(st.lists(st.floats(0, 20)))
def test_a_histograms_buckets_count_what_is_at_most_their_bound(values: list[float]) -> None:
    histogram = Histogram((1.0, 2.0, 10.0))
    for value in values:
        histogram.observe(value)
    family = Family("a.b", Form.HISTOGRAM, "s", "Help.", ("x",), [Point(("1",), histogram.copy())])
    text, _ = page([family], "")
    parsed = next(each for each in text_string_to_metric_families(text.decode()) if each.name == "a_b_seconds")
    buckets = {s.labels["le"]: s.value for s in parsed.samples if s.name == "a_b_seconds_bucket"}
    assert buckets == {
        **{str(bound): sum(value <= bound for value in values) for bound in (1.0, 2.0, 10.0)},
        "+Inf": len(values),
    }
    total = next(sample.value for sample in parsed.samples if sample.name == "a_b_seconds_sum")
    assert total == pytest.approx(sum(values))


def test_a_copy_does_not_change_with_what_comes_later() -> None:
    histogram = Histogram((1.0,))
    copy = histogram.copy()
    histogram.observe(0.5)
    assert (copy.count, histogram.count) == (0, 1)


def test_combinations_beyond_the_bound_are_counted_together() -> None:
    series: Series[list[str]] = Series(list)
    for number in range(MOST_SERIES + 50):
        series.of((f"model-{number}", "done")).append("x")
    assert len(dict(series)) == MOST_SERIES + 1
    assert dict(series)[OTHERS, OTHERS] == ["x"] * 50
    series.of(("model-0", "done")).append("x")
    assert dict(series)["model-0", "done"] == ["x", "x"]


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ("", (True, False)),
        ("http", (True, False)),
        ("http, gen_ai_latest_experimental", (False, True)),
        ("gen_ai_latest_experimental/dup", (True, True)),
    ],
)
def test_the_names_are_chosen_by_opentelemetrys_variable(words: str, chosen: tuple[bool, bool]) -> None:
    assert Conventions.chosen({VARIABLE: words}) == chosen


def _line(message: str) -> logging.LogRecord:
    return logging.LogRecord("paceline.fleet", logging.WARNING, "", 0, message, (), None)


def test_a_line_of_a_request_names_it_and_its_trace_and_others_do_not() -> None:
    before = JsonFormatter().format(_line("engine a is down"))
    token = CURRENT.set(Current("r-1", "t-1"))
    try:
        inside = json.loads(JsonFormatter().format(_line("breaker opened")))
        assert (inside["request_id"], inside["trace_id"]) == ("r-1", "t-1")
        assert TextFormatter().format(_line("breaker opened")).endswith("breaker opened request=r-1 trace=t-1")
        assert TextFormatter().format(_line("r-1 chat")).endswith("r-1 chat trace=t-1")
    finally:
        CURRENT.reset(token)
    assert not {"request_id", "trace_id"} & json.loads(before).keys()


def test_of_an_access_log_that_is_sampled_nothing_but_what_went_well_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "paceline.access")
    incoming = read_request(Operation.CHAT, b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}')
    ended = [
        Exchange(f"{how}-{n}", 0.0, incoming, Wishes(), ended=how) for n in range(400) for how in ("done", "failed")
    ]
    for each in ended:
        AccessLog(0.5).ended(each)
    lines = [record.getMessage().split("-")[0] for record in caplog.records]
    assert lines.count("failed") == 400
    assert 100 < lines.count("done") < 300
    caplog.clear()
    for each in ended:
        AccessLog(0.0).ended(each)
    assert len(caplog.records) == 400

"""Where a request stands in a trace, and which traces are kept."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.errors import Broken, Busy, Rejected
from gateway.errors import ApiError
from gateway.exchange import Exchange, Wishes
from gateway.incoming import read_request
from gateway.telemetry.sampling import FAILED, SAMPLED, SLOW, Sampling
from gateway.telemetry.span import Event, Kind, Link, Span, tree
from gateway.telemetry.trace import Trace, parent_of
from policies.types import Estimate, Operation

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f" 00-{TRACE}-{SPAN}-03 ", True),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", True),
    ],
)
def test_a_callers_trace_is_continued(header: str, sampled: bool) -> None:
    trace = Trace.begin({b"traceparent": header.encode()}, 0)
    assert (trace.trace_id, trace.parent_id, trace.sampled) == (TRACE, SPAN, sampled)
    assert trace.span_id not in (SPAN, "0" * 16)


@pytest.mark.parametrize(
    "header",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\r\nx: y",
    ],
)
def test_what_is_no_valid_traceparent_begins_a_new_trace(header: str) -> None:
    trace = Trace.begin({b"traceparent": header.encode()}, 0)
    assert trace.trace_id != TRACE
    assert trace.parent_id == ""


@given(st.binary(max_size=80))
def test_no_header_whatever_breaks_it(header: bytes) -> None:
    parent = parent_of({b"traceparent": header})
    assert parent is None or len(parent[0]) == 32


def test_each_call_has_a_span_of_its_own_in_the_same_trace() -> None:
    trace = Trace.begin({}, 1 << 64)
    calls = [trace.call((("x-request-id", "r"),)) for _ in range(3)]
    assert len({span for span, _ in calls} | {trace.span_id}) == 4
    assert [headers[-1] for _, headers in calls] == [
        ("traceparent", f"00-{trace.trace_id}-{span}-01") for span, _ in calls
    ]
    assert parent_of({b"traceparent": calls[0][1][-1][1].encode()}) == (trace.trace_id, calls[0][0], True)


def test_a_share_of_all_traces_is_sampled_by_their_ids() -> None:
    below = Sampling(0.25, 10.0).below
    traces = [Trace.begin({}, below) for _ in range(4000)]
    assert all(each.sampled == (int(each.trace_id[16:], 16) < below) for each in traces)
    assert 800 < sum(each.sampled for each in traces) < 1200
    assert not any(Trace.begin({}, Sampling(0.0, 1.0).below).sampled for _ in range(100))
    assert all(Trace.begin({}, Sampling(1.0, 1.0).below).sampled for _ in range(100))


class _Try:
    def __init__(self, error: Any) -> None:
        self.error = error


def exchange(took_s: float, *errors: Any, told: ApiError | None = None, sampled: bool = False) -> Exchange:
    incoming = read_request(Operation.CHAT, b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}')
    ended = Exchange("r", 100.0, incoming, Wishes())
    ended.ended_at = 100.0 + took_s
    ended.trace = Trace.begin({}, (1 << 64) if sampled else 0)
    ended.tries = [_Try(error) for error in errors]  # type: ignore[misc]
    ended.error = told
    return ended


def test_slow_and_failed_requests_are_kept_whatever_the_share() -> None:
    sampling = Sampling(0.0, slow_s=5.0)
    assert sampling.why(exchange(1.0)) == ""
    assert sampling.why(exchange(1.0, sampled=True)) == SAMPLED
    assert sampling.why(exchange(5.0)) == SLOW
    assert sampling.why(exchange(1.0, Broken("x"), None)) == FAILED
    assert sampling.why(exchange(1.0, told=ApiError(503, "x"))) == FAILED


def test_one_that_takes_far_longer_than_predicted_is_slow() -> None:
    sampling = Sampling(0.0, slow_s=100.0)
    late, usual = exchange(4.2), exchange(3.8)
    late.estimate = usual.estimate = Estimate(0.0, 0.0, 0.5, 1.0, 0.1)
    assert (sampling.why(late), sampling.why(usual)) == (SLOW, "")


def test_a_clients_own_mistake_and_a_full_engine_are_no_failures() -> None:
    sampling = Sampling(0.0, slow_s=5.0)
    assert sampling.why(exchange(1.0, Rejected("x"), told=ApiError(400, "x"))) == ""
    assert sampling.why(exchange(1.0, Busy("x"), told=ApiError(429, "x"))) == ""


def test_a_trace_prints_as_a_tree() -> None:
    root = Span("POST /v1", TRACE, "1" * 16, SPAN, 0, 9_000_000, Kind.SERVER, {"status": 200})
    root.links.append(Link(TRACE, "9" * 16))
    call = Span("chat m", TRACE, "3" * 16, "1" * 16, 2_000_000, 9_000_000, Kind.CLIENT)
    call.events.append(Event("first token", 4_000_000))
    call.failed, call.why = True, "it ended"
    route = Span("route", TRACE, "2" * 16, "1" * 16, 1_000_000, 2_000_000, attributes={"candidates": ("a", "b")})
    assert tree([call, root, route]).splitlines() == [
        f"trace {TRACE}, called by span {SPAN}",
        "POST /v1 (server)  at 0.0 ms, took 9.0 ms",
        "│  status = 200",
        f"│  → span {'9' * 16} of trace {TRACE}",
        "├─ route (internal)  at 1.0 ms, took 1.0 ms",
        "│     candidates = [a, b]",
        "└─ chat m (client)  at 2.0 ms, took 7.0 ms  FAILED it ended",
        "      * first token at 4.0 ms",
    ]

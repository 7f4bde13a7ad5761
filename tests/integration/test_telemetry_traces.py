"""Each request becomes one trace that a real collector decodes; where there is none, nothing is lost but the trace."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import valkeys
from engines.scripted import ScriptedEngine
from engines.scripts import chat, status
from engines.signals import Gate
from gateways import Gateway, chat_body, engine_at

from gateway.telemetry import shipper

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="NO OPENTELEMETRY: install paceline[telemetry]")
from collectors import FrozenCollector, GrpcCollector, HttpCollector, Span
from opentelemetry.baggage import set_baggage
from opentelemetry.baggage.propagation import W3CBaggagePropagator

Scripted = Callable[..., ScriptedEngine]
Start = Callable[..., Gateway]

CHAT = "/v1/chat/completions"
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SERVER, CLIENT = 2, 3


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches do not wait for more."""
    monkeypatch.setattr(shipper, "BATCH_S", 0.0)


@pytest.fixture
def collector() -> Iterator[HttpCollector]:
    running = HttpCollector()
    yield running
    running.stop()


def by_name(spans: list[Span]) -> dict[str, Span]:
    return {span.name: span for span in spans}


async def post(running: Gateway, body: dict[str, Any], **headers: str) -> Any:
    async with running.client() as client:
        return await client.post(CHAT, json=body, headers=headers)


async def test_a_streamed_request_that_was_retried_is_one_whole_trace(
    scripted: Scripted, gateway: Start, collector: HttpCollector
) -> None:
    broken, good = scripted(kind="vllm"), scripted(kind="vllm")
    broken.always(status(500))
    running = gateway(
        engines=[engine_at(broken, "a"), engine_at(good, "b")],
        cache={"mode": "all"},
        telemetry={"endpoint": collector.url},
    )
    body = chat_body(stream=True, max_tokens=20, temperature=0.3, top_p=0.9, seed=7, stop=["END"])
    answer = await post(running, body, traceparent=CALLER, tracestate="vendor=1", baggage="tenant=acme")
    assert answer.headers["x-paceline-attempts"] == "2"
    spans = collector.trace(answer.headers["x-request-id"])
    root, lookup, route, first, second = spans
    assert [each.name for each in spans] == [f"POST {CHAT}", "cache lookup", "route", "chat m", "chat m"]
    assert {each.trace_id for each in spans} == {CALLER.split("-")[1]}
    assert root.parent_id == CALLER.split("-")[2]
    assert {each.parent_id for each in spans[1:]} == {root.span_id}
    assert [each.kind for each in (root, first, second)] == [SERVER, CLIENT, CLIENT]
    assert all(root.start <= each.start <= each.end <= root.end for each in spans)
    assert root.attributes["http.response.status_code"] == 200
    assert root.resource["service.name"] == "paceline"
    assert lookup.attributes == {
        "paceline.cache.result": "miss",
        "paceline.cache.key": answer.headers["x-paceline-cache-key"],
    }
    assert route.attributes["paceline.route.candidates"] == ["a", "b"]
    assert route.attributes["paceline.route.chosen"] == "a"
    assert first.failed
    assert first.attributes["error.type"] == "Broken"
    assert [root.failed, second.failed] == [False, False]
    assert second.attributes["paceline.attempt.cause"] == "Broken"
    assert second.start < second.events["first token"] <= second.end
    told = second.attributes
    assert {name: told[name] for name in told if name.startswith("gen_ai.")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.system": "vllm",
        "gen_ai.request.model": "m",
        "gen_ai.request.max_tokens": 20,
        "gen_ai.request.temperature": 0.3,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stop_sequences": ["END"],
        "gen_ai.response.id": json.loads(answer.text.split("\n")[0].removeprefix("data: "))["id"],
        "gen_ai.response.model": "engine-model",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.time_to_first_chunk": told["gen_ai.response.time_to_first_chunk"],
        "gen_ai.usage.input_tokens": told["gen_ai.usage.input_tokens"],
        "gen_ai.usage.output_tokens": told["gen_ai.usage.output_tokens"],
    }
    assert (told["server.address"], told["server.port"]) == ("127.0.0.1", good.port)
    for engine, span in ((broken, first), (good, second)):
        headers = engine.requests[0].headers
        assert headers["traceparent"] == f"00-{span.trace_id}-{span.span_id}-01"
        assert (headers["tracestate"], headers["baggage"]) == ("vendor=1", "tenant=acme")


async def test_who_shares_a_call_is_linked_to_the_request_that_made_it(
    scripted: Scripted, gateway: Start, collector: HttpCollector
) -> None:
    engine, gate = scripted(kind="vllm"), Gate()
    engine.always(chat(["a", "b"], gate=gate))
    running = gateway(engines=[engine_at(engine, "a")], cache={"mode": "all"}, telemetry={"endpoint": collector.url})
    async with running.client() as client:
        leading = asyncio.create_task(client.post(CHAT, json=chat_body(stream=True)))
        await engine.received(0)
        following = asyncio.create_task(client.post(CHAT, json=chat_body(stream=True)))
        await asyncio.to_thread(wait_until, lambda: shared_calls(running) == 1)
        gate.open()
        leader, follower = await leading, await following
    assert follower.headers["x-paceline-cache"] == "coalesced"
    first = collector.trace(leader.headers["x-request-id"])
    second = collector.trace(follower.headers["x-request-id"])
    assert second[0].links == [(first[0].trace_id, first[0].span_id)]
    assert "chat m" in by_name(first)
    assert "chat m" not in by_name(second)


async def test_stages_that_the_callers_own_trace_carries_are_outside_of_the_model(
    scripted: Scripted, gateway: Start, collector: HttpCollector
) -> None:
    engine = scripted(kind="vllm")
    running = gateway(engines=[engine_at(engine, "a")], telemetry={"endpoint": collector.url})
    context = set_baggage("paceline.stage.retrieval", "0.8", set_baggage("tenant", "acme"))
    carried: dict[str, str] = {}
    W3CBaggagePropagator().inject(carried, context)
    answer = await post(running, chat_body(), **carried, **{"x-paceline-stage": "rerank=0.1"})
    id_ = answer.headers["x-request-id"]
    async with running.client() as client:
        told = (await client.get(f"/admin/requests/{id_}")).json()
    assert [(row["stage"], row["took_s"]) for row in told["waterfall"] if row["outside"]] == [
        ("rerank", 0.1),
        ("retrieval", 0.8),
    ]
    assert told["why"]["cause"] == "outside"
    assert engine.requests[0].headers["baggage"] == carried["baggage"]
    assert collector.trace(id_)[0].attributes["paceline.stage.outside_ms"] == 900


@pytest.mark.parametrize("kind", ["vllm", "llamacpp", "ollama"])
async def test_a_call_is_known_by_the_id_that_its_answer_has(
    scripted: Scripted, gateway: Start, collector: HttpCollector, kind: str
) -> None:
    running = gateway(engines=[engine_at(scripted(kind=kind), "a")], telemetry={"endpoint": collector.url})
    answer = await post(running, chat_body())
    call = by_name(collector.trace(answer.headers["x-request-id"]))["chat m"]
    assert call.attributes["gen_ai.response.id"] == answer.json()["id"] != ""


@pytest.mark.parametrize("streams", [True, False])
async def test_who_shares_the_call_of_another_gateway_is_linked_to_the_request_that_made_it(
    scripted: Scripted, gateway: Start, collector: HttpCollector, valkey: Callable[..., valkeys.Valkey], streams: bool
) -> None:
    engine, gate = scripted(kind="vllm"), Gate()
    engine.always(chat(["a", "b"], gate=gate))
    cache = {"mode": "all", "url": valkey().url, "memory": 0, "lookup_ms": 2000}
    one, two = (
        gateway(engines=[engine_at(engine, "a")], cache=cache, telemetry={"endpoint": collector.url}) for _ in range(2)
    )
    for each in (one, two):
        await asyncio.to_thread(each.wait_until_reached)
    body = chat_body(stream=True)
    async with one.client() as first, two.client() as second:
        leading = asyncio.create_task(first.post(CHAT, json=body))
        await engine.received(0)
        gate.release(2)  # the head, and a first token
        following = asyncio.create_task(second.post(CHAT, json={**body, "stream": streams}))
        await asyncio.to_thread(one.wait_until_followed)
        joining = asyncio.create_task(second.post(CHAT, json=body))
        await asyncio.to_thread(wait_until, lambda: shared_calls(two) >= 1)
        gate.open()
        answers = [await leading, await following, await joining]
    assert [each.headers["x-paceline-cache"] for each in answers] == ["miss", "coalesced", "coalesced"]
    assert len(engine.requests) == 1
    leader, *others = (collector.trace(each.headers["x-request-id"]) for each in answers)
    assert [each[0].links for each in others] == [[(leader[0].trace_id, leader[0].span_id)]] * 2


def shared_calls(running: Gateway) -> float:
    caching = running.house.caching
    assert caching is not None
    return float(running.call(caching.stores.statistics.total)["coalesced"])


def wait_until(holds: Callable[[], bool]) -> None:
    """Return once it holds. Raises AssertionError after a limit."""
    end = time.monotonic() + 20.0
    while not holds():
        assert time.monotonic() < end, "it did not happen"


async def test_only_a_share_is_kept_but_for_what_failed_and_what_the_caller_samples(
    scripted: Scripted, gateway: Start, collector: HttpCollector
) -> None:
    engine = scripted(kind="vllm")
    engine.next(chat(["a"]), chat(["a"]), chat(["a"]), status(500))
    running = gateway(engines=[engine_at(engine, "a")], telemetry={"endpoint": collector.url, "sample": 0.0})
    await post(running, chat_body())
    await post(running, chat_body(), traceparent=CALLER[:-1] + "0")
    sampled = await post(running, chat_body(), traceparent=CALLER)
    failed = await post(running, chat_body())
    assert failed.status_code == 502
    kept = collector.trace(failed.headers["x-request-id"])
    assert kept[0].attributes["paceline.trace.kept"] == "failed"
    assert kept[0].failed
    collector.trace(sampled.headers["x-request-id"])
    roots = [span.attributes["paceline.request.id"] for span in collector.spans if span.kind == SERVER]
    assert roots == [sampled.headers["x-request-id"], failed.headers["x-request-id"]]
    flags = [each.headers["traceparent"][-2:] for each in engine.requests]
    assert flags == ["00", "00", "01", "00"]


async def test_a_prompt_is_in_no_trace_unless_wanted_and_then_without_what_must_be_hidden(
    scripted: Scripted, gateway: Start, collector: HttpCollector
) -> None:
    engine = scripted(kind="vllm")
    engine.always(chat(["the plan", " of 123-45-6789"]))
    plain = gateway(engines=[engine_at(engine, "a")], telemetry={"endpoint": collector.url})
    settings = {"endpoint": collector.url, "content": True, "redact": [r"\b\d{3}-\d{2}-\d{4}\b"]}
    recording = gateway(engines=[engine_at(engine, "a")], telemetry=settings)
    body = chat_body("secret plan, 123-45-6789", stream=True)
    silent = await post(plain, body)
    collector.trace(silent.headers["x-request-id"])
    assert b"plan" not in collector.raw
    for streams in (True, False):
        told = await post(recording, {**body, "stream": streams})
        call = by_name(collector.trace(told.headers["x-request-id"]))["chat m"].attributes
        asked, said = (json.loads(call[f"gen_ai.{side}.messages"]) for side in ("input", "output"))
        assert asked == [{"role": "user", "parts": [{"type": "text", "content": "secret plan, [hidden]"}]}]
        assert said[0]["parts"] == [{"type": "text", "content": "the plan of [hidden]"}]
        assert said[0]["finish_reason"] == "stop"
    assert b"6789" not in collector.raw


async def test_a_collector_can_be_spoken_to_by_grpc(scripted: Scripted, gateway: Start) -> None:
    collector = GrpcCollector()
    try:
        engine = scripted(kind="vllm")
        running = gateway(
            engines=[engine_at(engine, "a")],
            telemetry={"endpoint": collector.url, "protocol": "grpc", "metrics_every_s": 0.2},
        )
        answer = await post(running, chat_body())
        spans = by_name(collector.trace(answer.headers["x-request-id"]))
        assert set(spans) == {f"POST {CHAT}", "route", "chat m"}
        collector.wait(lambda each: "gen_ai.client.operation.duration" in each.metrics)
        running.stop()
    finally:
        collector.stop()


@pytest.mark.parametrize(
    ("opted", "present", "absent"),
    [
        ("", {"gen_ai.client.operation.duration", "gen_ai.client.token.usage"}, {"gen_ai.client.inference.duration"}),
        (
            "http,gen_ai_latest_experimental",
            {"gen_ai.client.inference.duration", "gen_ai.client.inference.time_to_first_chunk"},
            {"gen_ai.client.operation.duration"},
        ),
        (
            "gen_ai_latest_experimental/dup",
            {"gen_ai.client.inference.duration", "gen_ai.client.operation.duration"},
            set(),
        ),
    ],
)
async def test_names_are_the_old_the_new_or_both_as_opentelemetrys_variable_says(
    scripted: Scripted,
    gateway: Start,
    collector: HttpCollector,
    monkeypatch: pytest.MonkeyPatch,
    opted: str,
    present: set[str],
    absent: set[str],
) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", opted)
    running = gateway(engines=[engine_at(scripted(kind="vllm"), "a")], telemetry={"endpoint": collector.url})
    answer = await post(running, chat_body(stream=True))
    call = by_name(collector.trace(answer.headers["x-request-id"]))["chat m"].attributes
    running.stop()  # which reports the metrics a last time
    assert present <= collector.metrics.keys()
    assert not absent & collector.metrics.keys()
    assert ("gen_ai.system" in call) == ("gen_ai.client.operation.duration" in present)
    assert ("gen_ai.provider.name" in call) == ("gen_ai.client.inference.duration" in present)


async def test_reported_metrics_have_the_conventions_attributes_and_exemplars_of_kept_traces(
    scripted: Scripted, gateway: Start, collector: HttpCollector
) -> None:
    running = gateway(engines=[engine_at(scripted(kind="vllm"), "a")], telemetry={"endpoint": collector.url})
    answer = await post(running, chat_body(stream=True))
    root = collector.trace(answer.headers["x-request-id"])[0]
    running.stop()
    point = collector.metrics["gen_ai.client.operation.duration"].histogram.data_points[0]
    labels = {pair.key: pair.value.string_value for pair in point.attributes}
    assert labels == {
        "gen_ai.operation.name": "chat",
        "gen_ai.system": "vllm",
        "gen_ai.request.model": "m",
        "paceline.deployment": "a",
        "paceline.precision": "unknown",
        "paceline.outcome": "done",
    }
    assert (point.count, sum(point.bucket_counts)) == (1, 1)
    assert [each.trace_id.hex() for each in point.exemplars] == [root.trace_id]


async def test_without_telemetry_a_callers_context_goes_on_as_it_is(scripted: Scripted, gateway: Start) -> None:
    engine = scripted(kind="vllm")
    running = gateway(engines=[engine_at(engine, "a")])
    await post(running, chat_body(), traceparent=CALLER)
    await post(running, chat_body())
    assert engine.requests[0].headers["traceparent"] == CALLER
    assert "traceparent" not in engine.requests[1].headers


async def test_a_dead_collector_costs_one_line_in_the_log_and_no_request(
    scripted: Scripted, gateway: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    caplog.set_level(logging.WARNING)
    running = gateway(engines=[engine_at(scripted(kind="vllm"), "a")], telemetry={"endpoint": url})
    ship = running.house.telemetry._shipper
    assert ship is not None
    for lost in (0, 1, 2):
        assert (await post(running, chat_body())).status_code == 200
        await asyncio.to_thread(wait_until, lambda before=lost: ship.dropped > before)
    lines = [record.getMessage() for record in caplog.records if "elemetry" in record.name]
    assert len(lines) == 1
    assert url in lines[0]


async def test_a_frozen_collector_is_waited_for_by_no_request_and_what_waits_for_it_is_bounded(
    scripted: Scripted, gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipper, "BATCH", 1)
    monkeypatch.setattr("gateway.telemetry.telemetry.MOST_WAITING", 4)
    collector = FrozenCollector()
    try:
        running = gateway(engines=[engine_at(scripted(kind="vllm"), "a")], telemetry={"endpoint": collector.url})
        await post(running, chat_body())
        collector.wait(lambda each: each.calls > 0)  # the first batch is under way, and stays so
        for _ in range(10):
            assert (await post(running, chat_body())).status_code == 200
        ship = running.house.telemetry._shipper
        assert ship is not None
        assert ship.dropped == 6
        assert ship._waiting.qsize() == 4
        running.stop()
    finally:
        collector.stop()


async def test_a_request_that_a_client_left_is_a_trace_too(
    scripted: Scripted, gateway: Start, collector: HttpCollector
) -> None:
    engine, gate = scripted(kind="vllm"), Gate()
    engine.always(chat(["a", "b"], gate=gate))
    running = gateway(engines=[engine_at(engine, "a")], telemetry={"endpoint": collector.url})
    gate.release(2)
    async with running.client() as client, client.stream("POST", CHAT, json=chat_body(stream=True)) as answer:
        request_id = answer.headers["x-request-id"]
    root, *_, call = collector.trace(request_id)
    assert root.attributes["paceline.outcome"] == "cancelled"
    assert [root.failed, call.failed] == [False, False]


async def test_each_line_of_the_log_has_the_requests_and_the_traces_id(
    scripted: Scripted, gateway: Start, collector: HttpCollector, capsys: pytest.CaptureFixture[str]
) -> None:
    from gateway.logs import JsonFormatter

    lines: list[dict[str, Any]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(JsonFormatter().format(record)))

    log, keep = logging.getLogger("paceline"), Keep()
    log.addHandler(keep)
    before, log.level = log.level, logging.INFO
    try:
        engine = scripted(kind="vllm")
        engine.always(status(500))
        running = gateway(engines=[engine_at(engine, "a")], log={"access": True}, telemetry={"endpoint": collector.url})
        answers = [await post(running, chat_body("my own words")) for _ in range(3)]
        traces = {a.headers["x-request-id"]: collector.trace(a.headers["x-request-id"])[0].trace_id for a in answers}
    finally:
        log.removeHandler(keep)
        log.setLevel(before)
    of_requests = [line for line in lines if "request_id" in line]
    assert {(line["request_id"], line["trace_id"]) for line in of_requests} == set(traces.items())
    assert any("breaker" in line["message"] for line in of_requests)
    assert "my own words" not in json.dumps(lines)


def test_nothing_of_it_is_imported_before_it_is_needed() -> None:
    program = (
        "import sys, gateway.serve; from gateway.house import House; from gateway.settings import Settings;"
        "import asyncio\nasync def main(): House(Settings())\nasyncio.run(main())\n"
        "print([n for n in sys.modules if n.startswith(('opentelemetry.sdk', 'grpc', 'prometheus_client'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"

"""Why a request was slow: each cause is provoked, and named rightly by the running gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from engines.scripted import Exchange, ScriptedEngine
from engines.scripts import Script, chat, cut, drop, hang, pieces, silence, status, whole
from engines.signals import Gate
from fleets import samples
from gateways import Gateway, chat_body, engine_at

from policies.diagnosis.case import Resources

Scripted = Callable[..., ScriptedEngine]
Start = Callable[..., Gateway]

CHAT = "/v1/chat/completions"
HELD_S = 0.3
"""How long a scripted engine holds what it was predicted to do within a few milliseconds."""
FAST = (100_000.0, 100_000.0)


def idle(engine: ScriptedEngine) -> ScriptedEngine:
    """Make an engine's gauges say that nothing runs there."""
    engine.routes["GET /slots"] = whole([{"id": i, "n_ctx": 2048, "is_processing": False} for i in (0, 1)])
    engine.routes.pop("GET /metrics", None)
    return engine


def measure(running: Gateway, **speeds: tuple[float, float]) -> None:
    """Give deployments a measurement: prompt tokens and output tokens per second."""
    for deployment in running.house.fleet.deployments:
        known = samples(*speeds.get(deployment.endpoint, FAST))
        running.call(running.house.fleet.learned.measured, deployment, known)


def started(gateway: Start, scripted: Scripted, kind: str = "vllm", **more: Any) -> tuple[Gateway, ScriptedEngine]:
    """Return a gateway with one measured engine."""
    engine = idle(scripted(kind=kind))
    running = gateway(engines=[engine_at(engine, "a", **more.pop("engine", {}))], **more)
    measure(running)
    return running, engine


def event(fields: dict[str, Any], model: str = "engine-model") -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}
    return b"data: " + httpx.Response(200, json={**head, **fields}).content + b"\n\n"


def held(*, before: float = 0.0, after: float = 0.0, prompt: int = 5, output: int = 3, size: int = 1) -> Script:
    """Stream a short answer, whose usage says what it is told to: slow before its first token, or after it."""

    async def script(exchange: Exchange) -> None:
        await exchange.head(headers={"content-type": "text/event-stream"})
        await asyncio.sleep(before)
        for number in range(3):
            delta = {"choices": [{"index": 0, "delta": {"content": "x" * size}, "finish_reason": None}]}
            await exchange.data(event(delta))
            if number == 0:
                await asyncio.sleep(after)
        await exchange.data(event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
        usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        await exchange.data(event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        await exchange.end()

    return script


async def ask(client: httpx.AsyncClient, id_: str, text: str = "hi", **more: Any) -> httpx.Response:
    headers = {"x-request-id": id_, **more.pop("headers", {})}
    return await client.post(CHAT, json=chat_body(text, stream=True, **more), headers=headers)


async def why(client: httpx.AsyncClient, id_: str) -> dict[str, Any]:
    """Return what is said of a request."""
    answer = await client.get(f"/admin/requests/{id_}")
    assert answer.status_code == httpx.codes.OK, answer.text
    told: dict[str, Any] = answer.json()
    print(f"\n[{told['why']['symptom']}, step {told['why']['step']}, {told['why']['cause']}] {told['why']['text']}")
    print(f"  -> {told['why']['advice']}")
    return told


def named(told: dict[str, Any]) -> tuple[str, int, str]:
    return told["why"]["symptom"], told["why"]["step"], told["why"]["cause"]


def seen(told: dict[str, Any], what: str) -> Any:
    return next(each["value"] for each in told["why"]["evidence"] if each["what"] == what)


async def test_a_prompt_that_turns_out_long(scripted: Scripted, gateway: Start) -> None:
    running, engine = started(gateway, scripted)
    measure(running, a=(1_000.0, 100_000.0))
    engine.always(held(before=HELD_S, prompt=4_000))
    async with running.client() as client:
        await ask(client, "long-prompt")
        told = await why(client, "long-prompt")
    assert named(told) == ("slow", 3, "long_prompt")
    assert seen(told, "prompt") == 4_000
    assert "4,000 tokens" in told["why"]["text"]
    assert "prefill" in [row["stage"] for row in told["waterfall"]]


async def test_an_answer_without_end(scripted: Scripted, gateway: Start) -> None:
    running, engine = started(gateway, scripted)
    measure(running, a=(100_000.0, 2_000.0))
    engine.always(held(after=HELD_S, output=20_000))
    async with running.client() as client:
        await ask(client, "huge", max_tokens=50_000)
        told = await why(client, "huge")
    assert named(told) == ("slow", 3, "long_answer")
    assert seen(told, "max_tokens") == 50_000
    assert seen(told, "answer") == 20_000


async def test_a_queue_in_the_gateway(scripted: Scripted, gateway: Start) -> None:
    running, engine = started(gateway, scripted, limits={"max_concurrent": 1})
    engine.always(held(before=HELD_S))
    async with running.client() as client:
        first = asyncio.create_task(ask(client, "first"))
        await engine.received(0)
        engine.always(held())
        await ask(client, "second")
        await first
        told = await why(client, "second")
    assert named(told) == ("slow", 2, "gateway_queue")
    assert told["stages"]["wait_s"] > 0.0


async def test_a_queue_in_the_engine(scripted: Scripted, gateway: Start) -> None:
    running, engine = started(gateway, scripted, kind="llamacpp")
    gate = Gate()
    engine.always(chat(gate=gate))  # its timings say that it read for 50 ms and wrote for 30 ms, whatever we wait
    async with running.client() as client:
        asking = asyncio.create_task(ask(client, "queued"))
        await engine.received(0)
        await asyncio.sleep(HELD_S)
        gate.open()
        await asking
        told = await why(client, "queued")
    assert named(told) == ("slow", 2, "engine_queue")


async def test_a_model_that_is_loaded_first(scripted: Scripted, gateway: Start) -> None:
    running, engine = started(gateway, scripted, kind="llamacpp")
    loading = status(503, {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}})
    engine.next(loading)
    engine.routes["GET /health"] = loading
    async with running.client() as client:
        asking = asyncio.create_task(ask(client, "cold"))
        await engine.received(0)
        await asyncio.sleep(HELD_S)
        engine.routes["GET /health"] = whole({"status": "ok"})
        await asking
        told = await why(client, "cold")
    assert named(told) == ("slow", 2, "cold_load")


async def test_an_engine_that_swaps(scripted: Scripted, gateway: Start) -> None:
    running, engine = started(gateway, scripted)
    assert running.house.requests is not None
    short = Resources(
        samples=1,
        memory_bytes=8 << 30,
        memory_available_bytes=100 << 20,
        swap_used_bytes=3 << 30,
        swapped_bytes_per_s=80 * 2.0**20,
        memory_stall=0.62,
    )
    running.house.requests.resources._look = lambda: short  # the sampler's interface
    engine.always(held(after=1.2))
    async with running.client() as client:
        await ask(client, "swaps")
        told = await why(client, "swaps")
    assert named(told) == ("slow", 4, "memory")
    assert seen(told, "waits for memory") == 0.62
    assert "80 MiB a second" in told["why"]["text"]


async def test_an_engine_that_is_slower_than_it_was_measured(scripted: Scripted, gateway: Start) -> None:
    running, engine = started(gateway, scripted, requests={"resources": False})
    engine.always(held(after=HELD_S))
    async with running.client() as client:
        await ask(client, "slow-engine")
        told = await why(client, "slow-engine")
    assert named(told) == ("slow", 6, "engine_slow")
    assert [each["step"] for each in told["why"]["looked"]] == [1, 2, 3, 4, 5, 6]


async def test_a_neighbour_that_comes_after_it_is_named(scripted: Scripted, gateway: Start) -> None:
    one, other = idle(scripted(kind="vllm")), idle(scripted(kind="vllm"))
    running = gateway(engines=[engine_at(one, "a"), engine_at(other, "b")], requests={"resources": False})
    measure(running)
    for deployment in running.house.fleet.deployments:  # company is usual there, though no prediction counts it
        profile = running.house.fleet.learned.predictor.profile(deployment.fingerprint)
        assert profile is not None
        profile.company = 3.0
    first, second = Gate(), Gate()
    one.always(chat(["x"] * 3, gate=first))
    other.always(chat(["x"] * 3, gate=second))
    async with running.client() as client:
        slow = asyncio.create_task(ask(client, "slowed", headers={"x-paceline-deployment": "a"}))
        await one.received(0)
        late = asyncio.create_task(ask(client, "late", headers={"x-paceline-deployment": "b"}))
        await other.received(0)
        await asyncio.sleep(HELD_S)
        first.open()
        await slow
        told = await why(client, "slowed")
        second.open()
        await late
    assert named(told) == ("slow", 5, "neighbours")
    beside = seen(told, "beside it: b")
    assert beside == pytest.approx(1.0, abs=0.3)
    assert f"b with {beside:.1f}" in told["why"]["text"]
    assert [each["deployment"] for each in told["beside"]] == ["b"]


async def test_a_client_that_reads_slowly(scripted: Scripted, gateway: Start) -> None:
    running, engine = started(gateway, scripted)
    engine.always(held(size=8 << 20))
    async with running.client() as client:
        headers = {"x-request-id": "slow-reader"}
        async with client.stream("POST", CHAT, json=chat_body(stream=True), headers=headers) as answer:
            await asyncio.sleep(3 * HELD_S)
            async for _ in answer.aiter_raw():
                pass
        told = await why(client, "slow-reader")
    assert named(told) == ("slow", 2, "slow_reader")


async def test_an_engine_that_is_dead(scripted: Scripted, gateway: Start) -> None:
    running, engine = started(gateway, scripted)
    engine.stop()
    async with running.client() as client:
        answer = await ask(client, "dead")
        told = await why(client, "dead")
    assert named(told) == ("error", 2, "engine_dead")
    assert told["status"] == answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
    assert seen(told, "a: Unreachable") >= 0.0


@pytest.mark.parametrize("silent", [hang(), silence()], ids=["no head", "a head"])
async def test_an_engine_that_is_silent(scripted: Scripted, gateway: Start, silent: Script) -> None:
    running, engine = started(gateway, scripted, engine={"first_byte_timeout_s": HELD_S})
    engine.always(silent)
    async with running.client() as client:
        await ask(client, "silent")
        told = await why(client, "silent")
    assert named(told) == ("stuck", 2, "engine_silent")
    assert told["status"] == httpx.codes.GATEWAY_TIMEOUT


async def test_an_engine_that_dies_in_the_middle(scripted: Scripted, gateway: Start) -> None:
    running, engine = started(gateway, scripted)
    engine.always(cut(after=2))
    async with running.client() as client:
        await ask(client, "dies")
        told = await why(client, "dies")
    assert named(told) == ("error", 2, "engine_died")


async def test_a_retry_after_a_failure(scripted: Scripted, gateway: Start) -> None:
    silent, well = idle(scripted(kind="vllm")), idle(scripted(kind="vllm"))
    silent.always(hang())
    running = gateway(
        engines=[
            engine_at(silent, "a", first_byte_timeout_s=HELD_S, hardware={"host": "one"}),
            engine_at(well, "b", hardware={"host": "two"}),
        ]
    )
    measure(running, a=(100_000.0, 100_000.0), b=(50_000.0, 50_000.0))
    async with running.client() as client:
        answer = await ask(client, "retried")
        told = await why(client, "retried")
    assert answer.headers["x-paceline-deployment"] == "b"
    assert named(told) == ("slow", 2, "retry")
    assert seen(told, "attempts") == 2


async def test_what_its_caller_did_before(scripted: Scripted, gateway: Start) -> None:
    running, engine = started(gateway, scripted)
    engine.always(held())
    async with running.client() as client:
        await ask(client, "outside", headers={"x-paceline-stage": "retrieval=0.8, rerank=0.1"})
        told = await why(client, "outside")
    assert named(told) == ("slow", 3, "outside")
    assert told["outside"] == [["retrieval", 0.8], ["rerank", 0.1]]
    assert [row["stage"] for row in told["waterfall"] if row["outside"]] == ["retrieval", "rerank"]


@pytest.mark.parametrize(
    "value",
    [
        "retrieval",
        "=1",
        "a=soon",
        "a=-1",
        "a=nan",
        "a=1e3",
        "a=99999999",
        ",".join(f"s{n}=1" for n in range(17)),
        "a=1,",
    ],
)
async def test_a_stage_that_is_none_is_refused_by_name(scripted: Scripted, gateway: Start, value: str) -> None:
    running, engine = started(gateway, scripted)
    async with running.client() as client:
        answer = await ask(client, "bad", headers={"x-paceline-stage": value})
        told = await why(client, "bad")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-paceline-stage")
    assert engine.requests == []
    assert named(told) == ("error", 3, "refused")


async def test_a_request_that_took_what_was_predicted(scripted: Scripted, gateway: Start) -> None:
    running, engine = started(gateway, scripted)
    measure(running, a=(10.0, 1.0))  # so slow that it comes before its time
    engine.always(held())
    async with running.client() as client:
        await ask(client, "in-time")
        told = await why(client, "in-time")
    assert named(told) == ("none", 0, "as_predicted")


async def test_an_answer_from_the_cache(scripted: Scripted, gateway: Start) -> None:
    running, _ = started(gateway, scripted, cache={"mode": "all"})
    async with running.client() as client:
        await ask(client, "asks")
        answer = await ask(client, "hits")
        told = await why(client, "hits")
    assert answer.headers["x-paceline-cache"] == "hit"
    assert named(told) == ("none", 0, "cached")
    assert told["deployment"] == "a"


async def test_requests_that_are_refused_before_they_are_read(scripted: Scripted, gateway: Start) -> None:
    running, _ = started(gateway, scripted)
    async with running.client() as client:
        await client.post(CHAT, content=b"{", headers={"x-request-id": "no-json"})
        await client.post(CHAT, json=chat_body(model="absent"), headers={"x-request-id": "no-model"})
        unread, unknown = await why(client, "no-json"), await why(client, "no-model")
    assert named(unread) == named(unknown) == ("error", 3, "refused")
    assert (unread["status"], unknown["status"]) == (400, 404)
    assert "never reached a model" in unread["why"]["text"]
    assert "paceline models" in unknown["why"]["advice"]


async def test_a_request_that_runs_and_is_stuck(scripted: Scripted, gateway: Start) -> None:
    running, engine = started(gateway, scripted)
    gate = Gate()
    engine.always(chat(gate=gate))
    async with running.client() as client:
        asking = asyncio.create_task(ask(client, "stuck"))
        await engine.received(0)
        await asyncio.sleep(HELD_S)
        told = await why(client, "stuck")
        listed = (await client.get("/admin/requests", params={"ended": "running"})).json()["requests"]
        gate.open()
        await asking
        after = await why(client, "stuck")
    assert named(told) == ("stuck", 2, "engine_silent")
    assert told["ended"] == "running"
    assert [each["request_id"] for each in listed] == ["stuck"]
    assert after["ended"] == "done"


async def test_a_client_that_left_before_any_output(scripted: Scripted, gateway: Start) -> None:
    running, engine = started(gateway, scripted)
    engine.always(silence())
    async with running.client() as client:
        asking = asyncio.create_task(ask(client, "left"))
        received = await engine.received(0)
        await asyncio.sleep(HELD_S)
        asking.cancel()
        await received.left.wait()
        running.wait_until_idle()
        told = await why(client, "left")
    assert named(told)[0] == "no output"
    assert told["ended"] == "cancelled"


async def test_an_engine_that_writes_nothing(scripted: Scripted, gateway: Start) -> None:
    running, engine = started(gateway, scripted)
    usage = {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}
    finish = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    engine.always(pieces(finish, event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n"))
    async with running.client() as client:
        await ask(client, "empty")
        told = await why(client, "empty")
    assert named(told) == ("no output", 3, "empty_answer")


async def test_a_broken_answer_is_an_error(scripted: Scripted, gateway: Start) -> None:
    running, engine = started(gateway, scripted)
    engine.always(drop(b"HTTP/1.1 2"))
    async with running.client() as client:
        await ask(client, "broken")
        told = await why(client, "broken")
    assert named(told) == ("error", 2, "engine_dead")


async def test_an_unknown_request_is_a_404(scripted: Scripted, gateway: Start) -> None:
    running, _ = started(gateway, scripted)
    async with running.client() as client:
        answer = await client.get("/admin/requests/nobody")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_request")

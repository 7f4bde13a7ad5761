"""Field lessons 14 to 16, the numbers behind routing: a whole gateway learns from what scripted engines answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from engines.scripted import Exchange, ScriptedEngine
from engines.scripts import SSE, Script, chat, cut, fail, status, text, whole
from engines.signals import Gate
from fleets import samples
from gateways import LIMIT_S, Gateway, chat_body, engine_at

from gateway.incoming import read_request
from policies.types import Operation

Scripted = Callable[..., ScriptedEngine]
Start = Callable[..., Gateway]

LONG = "word " * 300
COUNTS = (
    b'data: {"id":"1","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":90}}'
)
"""What it takes to be learned from, sent by an engine before its answer is whole."""


async def counts_and_stalls(exchange: Exchange) -> None:
    """Stream a token and the counts, then nothing more."""
    await exchange.head(headers=SSE)
    chunk = {"id": "1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "Hel"}}]}
    await exchange.data(b"data: " + json.dumps(chunk).encode() + b"\n\n" + COUNTS + b"\n\n")
    await asyncio.Event().wait()


def idle(engine: ScriptedEngine) -> ScriptedEngine:
    """Make an engine's gauges say that nothing runs there."""
    engine.routes["GET /slots"] = whole([{"id": i, "n_ctx": 2048, "is_processing": False} for i in (0, 1)])
    engine.routes.pop("GET /metrics", None)
    return engine


def apart(first: ScriptedEngine, second: ScriptedEngine) -> list[dict[str, Any]]:
    """Two engines in the same precision on machines of their own."""
    return [
        engine_at(idle(first), "a", precision="int4", hardware={"host": "left"}),
        engine_at(idle(second), "b", precision="int4", hardware={"host": "right"}),
    ]


def measure(gateway: Gateway, **speeds: tuple[float, float]) -> None:
    """Give engines a measurement: prompt tokens and output tokens per second."""
    for deployment in gateway.house.fleet.deployments:
        if deployment.endpoint in speeds:
            gateway.call(gateway.house.fleet.learned.measured, deployment, samples(*speeds[deployment.endpoint]))


def learned(gateway: Gateway) -> list[Any]:
    """All that the predictor knows."""
    fleet = gateway.house.fleet
    return [gateway.call(fleet.learned.predictor.to_dict, deployment.fingerprint) for deployment in fleet.deployments]


def drift_of_prefill(gateway: Gateway) -> float:
    (known,) = learned(gateway)
    return float(known["speed"]["prefill"]["drift"]["log"])


async def ask(client: httpx.AsyncClient, text: str = "hi", **more: Any) -> httpx.Response:
    answer = await client.post("/v1/chat/completions", json=chat_body(text, **more))
    assert answer.status_code == 200, answer.text
    return answer


async def explain(client: httpx.AsyncClient, prompt: str = "hi", model: str = "m", **more: Any) -> dict[str, Any]:
    answer = await client.post("/admin/explain", json={"model": model, "prompt": prompt, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def until(condition: Callable[[], Any]) -> None:
    """Return once an awaitable condition holds; fails after the limit."""
    async with asyncio.timeout(LIMIT_S):
        while not await condition():
            pass


# Lesson 14: the first token from the uncached prompt and the load, the rest from the tokens; both added


async def test_a_long_prompt_goes_to_the_fast_reader_and_a_long_answer_to_the_fast_writer(
    scripted: Scripted, gateway: Start
) -> None:
    running = gateway(engines=apart(scripted(kind="vllm"), scripted(kind="vllm")))
    measure(running, a=(5000.0, 10.0), b=(200.0, 100.0))
    async with running.client() as client:
        read = await ask(client, LONG, max_tokens=1)
        written = await ask(client, "hi", max_tokens=64)
        first = await ask(client, LONG, max_tokens=64, model="m@int4")
        soon = await client.post(
            "/v1/chat/completions", json=chat_body(LONG, max_tokens=64), headers={"x-paceline-objective": "ttft"}
        )
    assert read.headers["x-paceline-deployment"] == "a"
    assert written.headers["x-paceline-deployment"] == "b"
    assert first.headers["x-paceline-deployment"] == "b"
    assert soon.headers["x-paceline-deployment"] == "a"


async def test_a_prediction_is_what_the_prompt_takes_and_what_the_answer_takes(
    scripted: Scripted, gateway: Start
) -> None:
    engine = scripted(kind="vllm")
    running = gateway(engines=[engine_at(idle(engine), "a")])
    measure(running, a=(100.0, 20.0))
    async with running.client() as client:
        (one,) = (await explain(client, LONG, max_tokens=1))["candidates"]
        (many,) = (await explain(client, LONG, max_tokens=61))["candidates"]
        (short,) = (await explain(client, "hi", max_tokens=61))["candidates"]
        answer = await ask(client, LONG, max_tokens=61)
    assert one["decode_s"] == 0.0
    assert many["ttft_s"] == one["ttft_s"]
    assert many["decode_s"] == pytest.approx(60 / 20.0)
    assert short["decode_s"] == many["decode_s"]
    assert short["ttft_s"] < many["ttft_s"] / 10
    assert many["total_s"] == pytest.approx(many["ttft_s"] + many["decode_s"])
    assert float(answer.headers["x-paceline-predicted-ttft-ms"]) == pytest.approx(many["ttft_s"] * 1000, abs=1)
    assert float(answer.headers["x-paceline-predicted-total-ms"]) == pytest.approx(many["total_s"] * 1000, abs=1)


async def test_an_answer_in_one_body_counts_as_being_written_once_its_prompt_should_be_read(
    scripted: Scripted, gateway: Start
) -> None:
    engine, gate = scripted(kind="vllm"), Gate()
    engine.always(chat(gate=gate))
    running = gateway(engines=[engine_at(idle(engine), "a")])
    measure(running, a=(100_000.0, 20.0))
    (deployment,) = running.house.fleet.deployments
    async with running.client() as client:
        asking = asyncio.create_task(ask(client, LONG, max_tokens=1000))

        async def writes() -> bool:
            work = await asyncio.to_thread(running.call, running.house.fleet._ledger.view, deployment.id)
            return bool(work.inflight == 1 and work.prefilling == 0)

        await until(writes)
        gate.open()
        await asking


async def test_short_answers_do_not_make_an_engine_look_slow(scripted: Scripted, gateway: Start) -> None:
    engine = scripted(kind="llamacpp")
    engine.always(chat(["x"] * 3))  # it says that these took 30 ms
    running = gateway(engines=[engine_at(idle(engine), "a")])
    measure(running, a=(100.0, 1000.0))
    (before,) = learned(running)
    async with running.client() as client:
        for _ in range(20):
            await ask(client)
    (after,) = learned(running)
    assert after["speed"]["tpot"] == before["speed"]["tpot"]


async def test_what_runs_ahead_is_waited_for_in_the_prediction_and_is_gone_when_it_has_ended(
    scripted: Scripted, gateway: Start
) -> None:
    gate = Gate()
    engine = scripted(kind="llamacpp")
    engine.always(chat(gate=gate))
    running = gateway(engines=[engine_at(idle(engine), "a", slots=2)])
    measure(running, a=(100.0, 20.0))
    async with running.client() as client:
        (alone,) = (await explain(client))["candidates"]
        calls = [asyncio.create_task(ask(client, max_tokens=100)) for _ in range(4)]
        await engine.received(3)
        (behind,) = (await explain(client))["candidates"]
        gate.open()
        await asyncio.gather(*calls)
        (again,) = (await explain(client))["candidates"]
    assert alone["queue_s"] == again["queue_s"] == 0.0
    assert behind["queue_s"] > 1.0, "four answers of a hundred tokens at 20 tokens/s, two at once"


async def test_the_part_of_a_prompt_that_an_engine_holds_is_not_predicted_again(
    scripted: Scripted, gateway: Start
) -> None:
    first, second = scripted(kind="vllm"), scripted(kind="vllm")
    second.always(chat(prompt_tokens=1000))
    running = gateway(engines=apart(first, second))
    measure(running, a=(100.0, 20.0), b=(100.0, 20.0))
    text = LONG * 3
    async with running.client() as client:
        await ask(client, text, model="m@b")
        told = await explain(client, text)
    held = {candidate["deployment"]: candidate for candidate in told["candidates"]}
    assert held["b"]["prefill_s"] < held["a"]["prefill_s"] / 2
    assert told["chosen"] == "b"


async def test_an_engine_whose_cache_has_blocks_longer_than_a_prompt_holds_nothing_of_it(
    scripted: Scripted, gateway: Start
) -> None:
    first, second = scripted(kind="vllm"), scripted(kind="vllm")
    second.always(chat(prompt_tokens=1000))
    engines = apart(first, second)
    second.routes["GET /metrics"] = text('vllm:cache_config_info{block_size="4096"} 1.0\n')
    running = gateway(engines=engines)
    measure(running, a=(100.0, 20.0), b=(100.0, 20.0))
    async with running.client() as client:
        await ask(client, LONG * 3, model="m@b")
        told = await explain(client, LONG * 3)
    a, b = (candidate["prefill_s"] for candidate in sorted(told["candidates"], key=lambda each: each["deployment"]))
    assert b > a / 2, "what it has learned from its quick answer is all that it is faster by"


# Lesson 15: what must not teach


@pytest.mark.parametrize(
    "script",
    [
        status(500),
        status(429),
        status(400),
        cut(after=2),
        cut(after=2, clean=True),
        cut(after=2, tail=COUNTS + b"\n\n"),
        fail(after=2),
    ],
    ids=["500", "429", "400", "cut", "ended too soon", "cut after the counts", "error in mid-stream"],
)
@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
async def test_a_call_that_failed_teaches_nothing(
    scripted: Scripted, gateway: Start, script: Script, stream: bool
) -> None:
    engine = scripted(kind="vllm")
    engine.always(script)
    running = gateway(engines=[engine_at(idle(engine), "a")])
    measure(running, a=(100.0, 20.0))
    before = learned(running)
    async with running.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat_body(stream=stream))
    assert answer.status_code >= 400 or '"error"' in answer.text
    assert learned(running) == before


async def test_a_call_that_its_client_left_teaches_nothing(scripted: Scripted, gateway: Start) -> None:
    engine = scripted(kind="vllm")
    engine.always(counts_and_stalls)
    running = gateway(engines=[engine_at(idle(engine), "a")])
    measure(running, a=(100.0, 20.0))
    before = learned(running)
    async with running.client() as client:
        body = chat_body(stream=True)
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            async for line in response.aiter_lines():
                if "Hel" in line:
                    break
        received = await engine.received(0)
        await received.left.wait()
    await asyncio.to_thread(running.wait_until_idle)
    assert learned(running) == before


async def test_a_cold_load_teaches_nothing_and_the_next_request_does(scripted: Scripted, gateway: Start) -> None:
    engine = scripted(kind="ollama")
    engine.routes["GET /api/ps"] = whole({"models": []})
    engine.always(chat(["x"] * 20))
    running = gateway(engines=[engine_at(engine, "a")])
    measure(running, a=(100.0, 20.0))
    before = learned(running)
    (described,) = running.house.fleet.engines
    async with running.client() as client:
        cold = await explain(client)
        await ask(client)
        assert learned(running) == before
        engine.routes["GET /api/ps"] = whole(
            {"models": [{"name": f"{engine.model}:latest", "model": f"{engine.model}:latest", "digest": "d1"}]}
        )
        running.call(described.look_again)

        async def is_warm() -> bool:
            return bool((await explain(client))["candidates"][0]["load_s"] == 0.0)

        await until(is_warm)
        await ask(client)
    assert cold["candidates"][0]["load_s"] > 0
    assert learned(running) != before


@pytest.mark.parametrize("kind", ["vllm", "llamacpp"])
async def test_an_answer_from_the_prefix_cache_teaches_nothing_about_reading(
    scripted: Scripted, gateway: Start, kind: str
) -> None:
    engine = scripted(kind=kind)
    engine.always(chat(["x"] * 20, prompt_tokens=400, cached_tokens=400))
    running = gateway(engines=[engine_at(idle(engine), "a")])
    measure(running, a=(100.0, 20.0))
    async with running.client() as client:
        for _ in range(5):
            await ask(client, LONG)
    assert drift_of_prefill(running) == 0.0


async def test_a_repeated_prompt_teaches_nothing_about_reading_where_the_engine_does_not_count_its_cache(
    scripted: Scripted, gateway: Start
) -> None:
    engine = scripted(kind="vllm")
    answer = chat(["x"] * 20, prompt_tokens=400)

    async def takes_a_moment(exchange: Any) -> None:
        await asyncio.sleep(0.01)  # the event loop's clock counts milliseconds: no time at all would teach nothing
        await answer(exchange)

    engine.always(takes_a_moment)
    running = gateway(engines=[engine_at(idle(engine), "a")])
    measure(running, a=(100.0, 20.0))
    async with running.client() as client:
        await ask(client, LONG)
        new = drift_of_prefill(running)
        for _ in range(5):
            await ask(client, LONG)
    assert new < 0.0, "the first time it was read, and faster than measured"
    assert drift_of_prefill(running) == new


async def test_a_short_conversation_is_known_to_go_on_from_the_end_of_its_answer(
    scripted: Scripted, gateway: Start
) -> None:
    engine = scripted(kind="llamacpp")
    engine.always(chat(["x"] * 20, prompt_tokens=30))
    running = gateway(engines=[engine_at(idle(engine), "a")])
    measure(running, a=(100.0, 20.0))
    said = [{"role": "user", "content": "Who are you?"}]
    further = [{"role": "assistant", "content": "A model."}, {"role": "user", "content": "And what do you do?"}]
    async with running.client() as client:
        await ask(client, messages=said)

    def held(messages: list[dict[str, str]]) -> dict[str, int]:
        incoming = read_request(Operation.CHAT, json.dumps({"model": "m", "messages": messages}).encode())
        prefixes = running.house.fleet.learned.prefixes
        return running.call(lambda: prefixes.holders(incoming.prefix, 64, 70, messages=incoming.messages))

    assert held([*said, *further]) == {"a": 50}
    assert held([{"role": "user", "content": "Where are you?"}, *further]) == {}
    assert held([{"role": "system", "content": "Who are you?"}, *further]) == {}


# Lesson 16: nobody is left out for ever


def _settled(client: httpx.AsyncClient) -> Callable[[], Any]:
    async def check() -> bool:
        return bool((await client.get("/admin/fleet")).json()["measuring"]["settled"])

    return check


async def test_an_engine_that_nobody_measured_is_measured_in_the_background_and_serves_then(
    scripted: Scripted, gateway: Start
) -> None:
    known, new = idle(scripted(kind="vllm")), idle(scripted(kind="vllm"))
    gate = Gate()
    new.always(chat(["x"] * 16, gate=gate))
    running = gateway(engines=apart(known, new), routing={"measure_at_start": True})
    async with running.client() as client:
        await new.received(0)  # one after the other: the first engine is measured, the second is about to be
        states = {each["id"]: each["state"] for each in (await client.get("/admin/fleet")).json()["deployments"]}
        meanwhile = await ask(client)
        gate.open()
        await until(_settled(client))
        measure(running, a=(50.0, 5.0))
        afterwards = await ask(client)
        (entry,) = (each for each in (await client.get("/admin/fleet")).json()["deployments"] if each["id"] == "b")
    assert states["b"] == "unmeasured"
    assert meanwhile.headers["x-paceline-deployment"] == "a"
    assert entry["state"] == "up"
    assert entry["measured"]
    assert afterwards.headers["x-paceline-deployment"] == "b"
    assert "x-paceline-predicted-total-ms" in afterwards.headers


async def test_an_unmeasured_engine_serves_whoever_asks_for_it_and_when_nobody_else_can(
    scripted: Scripted, gateway: Start
) -> None:
    first, second = scripted(kind="vllm"), scripted(kind="vllm")
    running = gateway(engines=apart(first, second))
    measure(running, a=(100.0, 20.0))
    async with running.client() as client:
        anyone = await ask(client)
        wanted = await ask(client, model="m@b")
        first.always(status(429, headers={"retry-after": "60"}))
        only = await ask(client)
    assert anyone.headers["x-paceline-deployment"] == "a"
    assert wanted.headers["x-paceline-deployment"] == "b"
    assert "x-paceline-predicted-total-ms" not in wanted.headers
    assert only.headers["x-paceline-deployment"] == "b"


async def _first_on(client: httpx.AsyncClient, deployment: str, most: int) -> int:
    """Return how many requests it takes until a deployment is chosen."""
    for count in range(most):
        if (await ask(client, max_tokens=20)).headers["x-paceline-deployment"] == deployment:
            return count
    raise AssertionError(f"{deployment} was not chosen in {most} requests")


async def test_an_engine_that_became_slower_is_left_and_one_that_was_slow_once_is_taken_again(
    scripted: Scripted, gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    slower, steady = scripted(kind="llamacpp"), scripted(kind="vllm")
    slower.always(chat(["x"] * 20))  # by its own word 20 tokens in 30 ms, a sixth of the measured speed
    steady.always(chat(["x"] * 20))
    running = gateway(engines=apart(slower, steady))
    measure(running, a=(8000.0, 4000.0), b=(2000.0, 1000.0))
    async with running.client() as client:
        assert (await ask(client, max_tokens=20)).headers["x-paceline-deployment"] == "a"
        assert await _first_on(client, "b", 40) > 0
        monkeypatch.setattr("policies.drift._HALF_LIFE_S", 0.01)
        monkeypatch.setattr("policies.drift._FADE_STEP_S", 0.001)

        async def is_taken_again() -> bool:
            return bool((await explain(client, max_tokens=20))["chosen"] == "a")

        await until(is_taken_again)

"""Field lessons 8 to 13 and 25 to 27, engines: busy, broken and wrong are three things, and no fault spreads."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from engines.scripted import ScriptedEngine
from engines.scripts import chat, cut, drop, hang, status, whole
from engines.signals import Gate
from gateways import Gateway, chat_body, engine_at

Scripted = Callable[..., ScriptedEngine]
Start = Callable[..., Gateway]

SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def two(first: ScriptedEngine, second: ScriptedEngine) -> list[dict[str, Any]]:
    """Two engines of which the first comes first: neither is measured, and it has the better precision."""
    return [engine_at(first, "a", precision="fp32"), engine_at(second, "b", precision="bf16")]


# Lesson 8: nothing is cut silently


async def test_a_prompt_that_fits_nowhere_is_one_400_that_names_both_numbers(
    scripted: Scripted, gateway: Start
) -> None:
    engine = scripted(kind="llamacpp")
    running = gateway(engines=[engine_at(engine, "a")])
    async with running.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat_body("word " * 50_000))
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert "2048" in message
    assert "tokens" in message
    assert not engine.requests


async def test_a_prompt_that_the_first_engine_finds_too_long_goes_to_one_whose_context_fits(
    scripted: Scripted, gateway: Start
) -> None:
    first, second = scripted(kind="llamacpp"), scripted(kind="vllm")
    error = {
        "code": 400,
        "message": "the request exceeds the available context size",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 3000,
        "n_ctx": 2048,
    }
    first.always(status(400, {"error": error}))
    running = gateway(engines=[engine_at(first, "a"), engine_at(second, "b", precision="int4")])
    async with running.client() as client:
        alone = await client.post("/v1/chat/completions", json=chat_body("word " * 600, model="m@a"))
        both = await client.post("/v1/chat/completions", json=chat_body("word " * 600))
    assert alone.status_code == 400
    assert alone.json()["error"]["code"] == "context_length_exceeded"
    assert "3000" in alone.json()["error"]["message"]
    assert "2048" in alone.json()["error"]["message"]
    assert both.status_code == 200


# Lesson 9: busy, broken and wrong


@pytest.mark.parametrize("code", [429, 503])
async def test_a_busy_engine_is_not_called_again_and_the_next_one_answers(
    scripted: Scripted, gateway: Start, code: int
) -> None:
    first, second = scripted(kind="vllm"), scripted(kind="vllm")
    first.always(status(code, headers={"retry-after": "30"}))
    running = gateway(engines=two(first, second))
    async with running.client() as client:
        answers = [await client.post("/v1/chat/completions", json=chat_body()) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert len(first.requests) == 1, "it asked to be left alone for 30 s"
    assert answers[0].headers["x-paceline-attempts"] == "2"
    assert answers[1].headers["x-paceline-attempts"] == "1"


async def test_when_all_are_busy_the_client_is_told_so_once_with_the_time_to_come_back(
    scripted: Scripted, gateway: Start
) -> None:
    engine = scripted(kind="vllm")
    engine.always(status(429, headers={"retry-after": "7"}))
    running = gateway(engines=[engine_at(engine, "a")])
    async with running.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat_body())
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "7"
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert len(engine.requests) == 1


@pytest.mark.parametrize("kind", ["vllm", "llamacpp"])
async def test_wrong_requests_keep_their_meaning_and_never_open_the_breaker(
    scripted: Scripted, gateway: Start, kind: str
) -> None:
    engine = scripted(kind=kind)
    error = {"message": "temperature must be >= 0", "type": "BadRequestError", "param": "temperature", "code": 400}
    engine.always(status(400, {"error": error}))
    running = gateway(engines=[engine_at(engine, "a")])
    async with running.client() as client:
        for _ in range(10):
            answer = await client.post("/v1/chat/completions", json=chat_body(temperature=-1))
            assert answer.status_code == 400
            assert "temperature must be >= 0" in answer.json()["error"]["message"]
        engine.always(chat())
        assert (await client.post("/v1/chat/completions", json=chat_body())).status_code == 200
    assert len(engine.requests) == 11, "each was sent once"


async def test_a_broken_engine_is_left_alone_after_three_failures_with_one_log_line_a_change(
    scripted: Scripted, gateway: Start, caplog: pytest.LogCaptureFixture
) -> None:
    engine = scripted(kind="vllm")
    engine.always(drop(b"HTTP/1.1 200"))
    running = gateway(engines=[engine_at(engine, "a")])
    with caplog.at_level(logging.INFO, logger="paceline"):
        async with running.client() as client:
            codes = [(await client.post("/v1/chat/completions", json=chat_body())).status_code for _ in range(8)]
    assert codes[:3] == [502, 502, 502]
    assert set(codes[3:]) == {503}
    assert len(engine.requests) == 3
    lines = [record for record in caplog.records if "breaker" in record.message]
    assert len(lines) == 1
    assert not any(record.exc_info for record in caplog.records), "no tracebacks"


async def test_a_half_open_breaker_lets_one_probe_through_and_ends_also_when_the_probe_is_cancelled(
    scripted: Scripted, gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policies.breaker.FIRST_OPEN_S", 0.0)
    engine = scripted(kind="vllm")
    engine.next(*[drop(b"HTTP/1.1 200")] * 3, hang(), hang())
    running = gateway(engines=[engine_at(engine, "a")])
    async with running.client() as client:
        for _ in range(3):
            await client.post("/v1/chat/completions", json=chat_body())
        for index in (3, 4):  # the first probe is cancelled; the second must be let through all the same
            probe = asyncio.create_task(client.post("/v1/chat/completions", json=chat_body()))
            received = await engine.received(index)
            beside = await client.post("/v1/chat/completions", json=chat_body())
            assert beside.status_code in (429, 503), "only one probe at a time"
            probe.cancel()
            await received.left.wait()
            await asyncio.to_thread(running.wait_until_idle)
        assert (await client.post("/v1/chat/completions", json=chat_body())).status_code == 200
        assert (await client.post("/v1/chat/completions", json=chat_body())).status_code == 200


# Lesson 10: an engine's 400 stays a 400; what nobody can serve is one 400


async def test_a_request_that_nobody_can_serve_lists_each_deployment_and_why(
    scripted: Scripted, gateway: Start
) -> None:
    first, second = scripted(kind="mlx"), scripted(kind="vllm")
    running = gateway(
        engines=[
            engine_at(first, "a", models={"default_model": "m", first.model: "m"}),
            engine_at(second, "b", capabilities={"json_schema": False}),
        ]
    )
    async with running.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat_body(response_format=SCHEMA))
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert "a" in message
    assert "b: cannot do json_schema" in message
    assert not first.requests
    assert not second.requests


async def test_a_server_error_of_the_first_engine_is_mended_by_the_second(scripted: Scripted, gateway: Start) -> None:
    first, second = scripted(kind="vllm"), scripted(kind="vllm")
    first.next(status(500), drop(b"HTTP/1.1 200"), cut(after=0))
    running = gateway(engines=two(first, second))
    async with running.client() as client:
        for stream in (False, True, True):
            answer = await client.post("/v1/chat/completions", json=chat_body(stream=stream))
            assert answer.status_code == 200
            assert answer.headers["x-paceline-deployment"] == "b"
            assert "Hel" in answer.text


async def test_when_every_better_precision_fails_a_lower_one_answers_the_same_request(
    scripted: Scripted, gateway: Start
) -> None:
    first, second = scripted(kind="vllm"), scripted(kind="vllm")
    first.always(drop(b"HTTP/1.1 200"))
    running = gateway(
        engines=[engine_at(first, "a", precision="bf16"), engine_at(second, "b", precision="int4")],
    )
    async with running.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat_body())
        pinned = await client.post("/v1/chat/completions", json=chat_body(model="m@bf16"))
    assert answer.headers["x-paceline-deployment"] == "b"
    assert answer.headers["x-paceline-attempts"] == "2"
    assert pinned.status_code == 502, "who asked for bf16 gets no int4"


# Lesson 11: one hung engine


async def test_a_hung_engine_holds_up_neither_others_nor_the_model_list_nor_health(
    scripted: Scripted, gateway: Start
) -> None:
    stuck, fine = scripted(kind="vllm"), scripted(kind="vllm")
    running = gateway(engines=[engine_at(stuck, "stuck", precision="fp32"), engine_at(fine, "fine", precision="bf16")])
    stuck.always(hang())
    for path in list(stuck.routes):
        stuck.routes[path] = hang()
    async with running.client() as client:
        held = [
            asyncio.create_task(client.post("/v1/chat/completions", json=chat_body(model="m@stuck"))) for _ in range(20)
        ]
        await stuck.received(19)
        answers = await asyncio.gather(
            client.get("/v1/models"),
            client.get("/health"),
            client.get("/ready"),
            *(client.post("/v1/chat/completions", json=chat_body(model="m@fine")) for _ in range(20)),
        )
        assert all(answer.status_code == 200 for answer in answers)
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)


async def test_a_silent_engine_is_given_up_after_its_limit_and_the_next_one_answers(
    scripted: Scripted, gateway: Start
) -> None:
    first, second = scripted(kind="vllm"), scripted(kind="vllm")
    first.always(hang())
    engines = two(first, second)
    engines[0]["first_byte_timeout_s"] = 0.2
    running = gateway(engines=engines)
    async with running.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat_body())
        alone = await client.post("/v1/chat/completions", json=chat_body(model="m@a"))
    assert answer.headers["x-paceline-deployment"] == "b"
    assert alone.status_code == 504


# Lesson 12: loading


async def test_requests_wait_once_for_a_model_that_is_loading(scripted: Scripted, gateway: Start) -> None:
    engine = scripted(kind="llamacpp")
    loading = whole({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, 503)
    ready = dict(engine.routes)
    for path in engine.routes:
        engine.routes[path] = loading
    running = gateway(engines=[engine_at(engine, "a")])
    async with running.client() as client:
        refused = await client.get("/ready")
        assert refused.status_code == 503
        engine.routes.update(ready)
        async with asyncio.timeout(10):
            while (await client.get("/ready")).status_code != 200:
                pass
        engine.next(loading)
        engine.always(chat())
        calls = [asyncio.create_task(client.post("/v1/chat/completions", json=chat_body())) for _ in range(5)]
        answers = await asyncio.gather(*calls)
    assert [answer.status_code for answer in answers] == [200] * 5
    assert len(engine.requests) <= 10, "each request tried at most twice"


async def test_a_loading_engine_is_passed_by_when_another_can_answer(scripted: Scripted, gateway: Start) -> None:
    first, second = scripted(kind="llamacpp"), scripted(kind="vllm")
    first.always(whole({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, 503))
    running = gateway(engines=two(first, second))
    async with running.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat_body())
    assert answer.status_code == 200
    assert answer.headers["x-paceline-deployment"] == "b"


# Lesson 13: herding


async def test_requests_that_arrive_together_spread_over_equal_engines(scripted: Scripted, gateway: Start) -> None:
    gate = Gate()
    first, second = scripted(kind="llamacpp"), scripted(kind="llamacpp")
    for engine in (first, second):
        engine.always(chat(gate=gate))
    # On hosts of their own, so that they do not slow each other.
    running = gateway(
        engines=[
            engine_at(first, "a", hardware={"host": "left"}),
            engine_at(second, "b", hardware={"host": "right"}),
        ]
    )
    async with running.client() as client:
        calls = [asyncio.create_task(client.post("/v1/chat/completions", json=chat_body())) for _ in range(8)]
        await asyncio.gather(first.received(3), second.received(3))
        gate.open()
        answers = await asyncio.gather(*calls)
    assert all(answer.status_code == 200 for answer in answers)
    assert (len(first.requests), len(second.requests)) == (4, 4)


# Lessons 25 to 27


async def test_ollama_is_never_told_to_reload_and_alternating_clients_keep_its_context(
    scripted: Scripted, gateway: Start
) -> None:
    engine = scripted(kind="ollama")
    running = gateway(engines=[engine_at(engine, "a")])
    async with running.client() as client:
        for text in ("hi", "word " * 200, "hi", "word " * 200):
            assert (await client.post("/v1/chat/completions", json=chat_body(text))).status_code == 200
    contexts = {request.json["options"].get("num_ctx") for request in engine.requests}
    assert len(contexts) == 1
    for request in engine.requests:
        assert not {"num_batch", "num_thread", "num_gpu"} & request.json["options"].keys()
        assert "shift" not in request.json
        assert request.json["truncate"] is False


async def test_a_busy_llamacpp_is_not_watched_while_it_works(scripted: Scripted, gateway: Start) -> None:
    engine = scripted(kind="llamacpp")
    gate = Gate()
    engine.always(chat(["x"] * 40, gate=gate))
    running = gateway(engines=[engine_at(engine, "a")])
    async with running.client() as client:
        calls = [asyncio.create_task(client.post("/v1/chat/completions", json=chat_body())) for _ in range(10)]
        await engine.received(9)
        before = len(engine.watched)
        gate.open()
        await asyncio.gather(*calls)
    assert len(engine.watched) - before <= 1, "no request asks the engine anything beside itself"


@pytest.mark.parametrize(
    ("more", "capability"),
    [
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ({"response_format": SCHEMA}, "json_schema"),
        ({"response_format": {"type": "json_object"}}, "json_object"),
        ({"n": 2}, "choices"),
        ({"logprobs": True}, "logprobs"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
                    }
                ]
            },
            "vision",
        ),
    ],
)
async def test_a_request_goes_only_where_its_capability_is(
    scripted: Scripted, gateway: Start, more: dict[str, Any], capability: str
) -> None:
    cannot, can = scripted(kind="vllm"), scripted(kind="vllm")
    engines = [
        engine_at(cannot, "a", precision="fp32", capabilities={capability: False}),
        engine_at(can, "b", precision="bf16", capabilities={capability: True}),
    ]
    running = gateway(engines=engines)
    async with running.client() as client:
        plain = await client.post("/v1/chat/completions", json=chat_body())
        special = await client.post("/v1/chat/completions", json={**chat_body(), **more})
        refused = await client.post("/v1/chat/completions", json={**chat_body(), **more, "model": "m@a"})
    assert plain.headers["x-paceline-deployment"] == "a"
    assert special.headers["x-paceline-deployment"] == "b"
    assert refused.status_code == 400
    assert capability in refused.json()["error"]["message"]
    sent = json.loads(can.requests[-1].body)
    for name, value in more.items():
        assert sent[name] == value

"""Near the edge of a context the engine's tokeniser counts; what does not fit never goes there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from engines import llama
from engines.scripted import ScriptedEngine
from engines.scripts import chat, hang, status, whole
from gateways import Gateway, chat_body, engine_at

from gateway import counting as gateway_counting

Scripted = Callable[..., ScriptedEngine]
Start = Callable[..., Gateway]

CHAT = "/v1/chat/completions"
EDGE = "word " * 1100
"""5,500 bytes: estimated at about 1,850 tokens of 2,048."""


def counting(engine: ScriptedEngine, tokens: int) -> ScriptedEngine:
    """Give a scripted llama.cpp a tokeniser that counts so many."""
    engine.routes["POST /apply-template"] = whole({"prompt": "templated"})
    engine.routes["POST /tokenize"] = whole({"tokens": list(range(tokens))})
    engine.always(chat(prompt_tokens=tokens))
    return engine


def small_and_large(small: ScriptedEngine, large: ScriptedEngine) -> list[dict[str, Any]]:
    """Two engines with the same model: ``a`` with a context of 2,048, ``b`` whose context nobody knows."""
    return [engine_at(small, "a", precision="int4"), engine_at(large, "b", precision="int4")]


def paths(engine: ScriptedEngine) -> list[str]:
    return [request.path for request in engine.watched]


async def ask(client: httpx.AsyncClient, text: str, **more: Any) -> httpx.Response:
    return await client.post(CHAT, json=chat_body(text, max_tokens=8, **more))


async def test_a_prompt_that_is_counted_to_be_too_long_is_never_sent_there(scripted: Scripted, gateway: Start) -> None:
    small, large = counting(scripted(kind="llamacpp"), 2048), scripted(kind="openai")
    large.always(chat(prompt_tokens=2048))
    running = gateway(engines=small_and_large(small, large))
    async with running.client() as client:
        answer = await ask(client, EDGE)
        refused = await ask(client, EDGE, model="m@a")
    assert answer.headers["x-paceline-deployment"] == "b"
    assert refused.status_code == 400
    assert "the prompt has 2048 tokens, its context is 2048" in refused.json()["error"]["message"]
    assert small.requests == []


async def test_a_prompt_that_is_counted_to_fit_goes_there(scripted: Scripted, gateway: Start) -> None:
    small, large = counting(scripted(kind="llamacpp"), 2000), scripted(kind="openai")
    running = gateway(engines=small_and_large(small, large))
    async with running.client() as client:
        answer = await ask(client, "word " * 1300)  # estimated beyond the context
    assert answer.headers["x-paceline-deployment"] == "a"


async def test_far_from_every_edge_nobody_is_asked_to_count(scripted: Scripted, gateway: Start) -> None:
    small = counting(scripted(kind="llamacpp"), 800)
    running = gateway(engines=[engine_at(small, "a")])
    async with running.client() as client:
        near = await ask(client, "word " * 500)
        beyond = await ask(client, "word " * 10_000)
    assert near.status_code == 200
    assert beyond.status_code == 400
    assert "at least" in beyond.json()["error"]["message"]
    assert "/tokenize" not in paths(small)


async def test_the_same_request_is_counted_once_and_another_one_anew(scripted: Scripted, gateway: Start) -> None:
    small = counting(scripted(kind="llamacpp"), 2000)
    running = gateway(engines=[engine_at(small, "a")])
    async with running.client() as client:
        for text in (EDGE, EDGE, EDGE + "!"):
            assert (await ask(client, text)).status_code == 200
    assert paths(small).count("/tokenize") == 2


async def test_a_tokeniser_that_fails_leaves_the_estimate_and_is_not_asked_again_soon(
    scripted: Scripted, gateway: Start
) -> None:
    small = counting(scripted(kind="llamacpp"), 2000)
    small.routes["POST /tokenize"] = status(500)
    running = gateway(engines=[engine_at(small, "a")])
    async with running.client() as client:
        for _ in range(2):
            assert (await ask(client, EDGE)).status_code == 200
    assert paths(small).count("/tokenize") == 1


async def test_a_tokeniser_that_hangs_costs_one_short_wait(
    scripted: Scripted, gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_counting, "LIMIT_S", 0.05)
    small = counting(scripted(kind="llamacpp"), 2000)
    small.routes["POST /tokenize"] = hang()
    running = gateway(engines=[engine_at(small, "a")])
    async with running.client() as client:
        for _ in range(2):
            assert (await ask(client, EDGE)).status_code == 200
    assert paths(small).count("/tokenize") == 1


@pytest.mark.llamacpp
async def test_a_real_llama_cpp_never_sees_a_prompt_that_its_tokeniser_finds_too_long(
    llamacpp: llama.LlamaServer, gateway: Start
) -> None:
    """Letters of one token each, half as dense again as the start estimate: it would let them pass."""
    engine = {"name": "a", "url": llamacpp.url, "kind": "llamacpp", "models": {llamacpp.model: "m"}}
    running = gateway(engines=[engine])
    async with running.client() as client:
        outside = await client.post(CHAT, json=chat_body("a b c d " * 550, max_tokens=1))
        inside = await client.post(CHAT, json=chat_body("a b c d " * 450, max_tokens=1), timeout=120)
    assert inside.status_code == 200
    assert inside.json()["usage"]["prompt_tokens"] > 1800
    assert outside.status_code == 400
    told = outside.json()["error"]["message"]
    assert "the prompt has 22" in told, told

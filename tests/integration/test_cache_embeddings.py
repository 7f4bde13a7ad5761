"""Embeddings through a whole gateway: an engine is asked for the texts that are new."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from engines.scripted import Exchange, ScriptedEngine
from engines.scripts import status
from engines.signals import Gate
from gateways import Gateway, engine_at

StartGateway = Callable[..., Gateway]


def embed(gate: Gate | None = None, vector: Callable[[str], list[float]] | None = None) -> Any:
    """A script that embeds each text as its length, and counts a token a letter."""

    async def script(exchange: Exchange) -> None:
        if gate is not None:
            await gate.pass_through()
        texts = exchange.request.json["input"]
        data = [
            {"object": "embedding", "index": i, "embedding": (vector or (lambda t: [float(len(t))]))(text)}
            for i, text in enumerate(texts if isinstance(texts, list) else [texts])
        ]
        tokens = sum(map(len, texts)) if isinstance(texts, list) else len(texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        await exchange.json({"object": "list", "data": data, "model": "engine-model", "usage": usage})

    return script


@pytest.fixture
def engine(scripted: Callable[..., ScriptedEngine]) -> ScriptedEngine:
    engine = scripted(kind="openai")
    engine.always(embed())
    return engine


@pytest.fixture
def cached(gateway: StartGateway, engine: ScriptedEngine) -> Gateway:
    settings = engine_at(engine, "a", capabilities={"embeddings": True})
    return gateway(engines=[settings], cache={"mode": "auto"})


async def ask(gateway: Gateway, texts: Any, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    async with gateway.client() as client:
        body = {"model": "m", "input": texts, **more}
        response = await client.post("/v1/embeddings", json=body, headers=headers)
    assert response.status_code == 200, response.text
    return response


def asked(engine: ScriptedEngine) -> list[Any]:
    return [json.loads(request.body)["input"] for request in engine.requests]


def lengths(response: httpx.Response) -> list[float]:
    data = response.json()["data"]
    assert [each["index"] for each in data] == list(range(len(data)))
    return [each["embedding"][0] for each in data]


async def test_of_a_batch_with_known_and_new_texts_the_new_ones_are_asked_for(
    cached: Gateway, engine: ScriptedEngine
) -> None:
    known = [f"{'x' * i} known" for i in range(90)]
    new = [f"{'y' * i} new" for i in range(10)]
    await ask(cached, known)
    mixed = [*known[:50], *new, *known[50:]]
    response = await ask(cached, mixed)
    assert asked(engine)[1] == new
    assert lengths(response) == [float(len(text)) for text in mixed]
    assert response.json()["usage"]["prompt_tokens"] == sum(map(len, mixed))
    assert response.headers["x-paceline-cache"] == "miss"
    again = await ask(cached, mixed)
    assert again.headers["x-paceline-cache"] == "hit"
    assert again.json() == response.json()
    assert len(engine.requests) == 2


async def test_a_text_that_stands_twice_is_asked_for_once(cached: Gateway, engine: ScriptedEngine) -> None:
    assert lengths(await ask(cached, ["aa", "b", "aa"])) == [2.0, 1.0, 2.0]
    assert asked(engine) == [["aa", "b"]]


async def test_a_text_alone_and_in_a_list_are_one(cached: Gateway, engine: ScriptedEngine) -> None:
    await ask(cached, "aa")
    assert (await ask(cached, ["aa"])).headers["x-paceline-cache"] == "hit"
    assert (await ask(cached, "aa", dimensions=1)).headers["x-paceline-cache"] == "miss"
    assert (await ask(cached, "aa", encoding_format="float")).headers["x-paceline-cache"] == "hit"


async def test_equal_batches_in_flight_are_one_call(cached: Gateway, engine: ScriptedEngine) -> None:
    gate = Gate()
    engine.always(embed(gate))
    asking = [asyncio.create_task(ask(cached, ["a", "bb"])) for _ in range(20)]
    await engine.received(0)
    async with asyncio.timeout(20.0):
        while cached.call(lambda: cached.house.admission.running) < 20:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    gate.open()
    responses = await asyncio.gather(*asking)
    assert {tuple(lengths(response)) for response in responses} == {(1.0, 2.0)}
    assert len(engine.requests) == 1


async def test_refresh_skip_and_only(cached: Gateway, engine: ScriptedEngine) -> None:
    await ask(cached, ["a"])
    await ask(cached, ["a"], {"x-paceline-cache": "refresh"})
    await ask(cached, ["a"], {"x-paceline-cache": "skip"})
    assert len(engine.requests) == 3
    async with cached.client(headers={"x-paceline-cache": "only"}) as client:
        statuses = [
            (await client.post("/v1/embeddings", json={"model": "m", "input": texts})).status_code
            for texts in (["a"], ["a", "b"])
        ]
    assert statuses == [200, 504]


async def test_vectors_of_two_deployments_are_never_in_one_answer(
    gateway: StartGateway, scripted: Callable[..., ScriptedEngine]
) -> None:
    engines = {name: scripted(kind="openai") for name in ("a", "b")}
    for number, engine in enumerate(engines.values()):
        engine.always(embed(vector=lambda _, number=number: [float(number)]))  # type: ignore[misc]
    cached = gateway(
        engines=[
            engine_at(engines["a"], "a", capabilities={"embeddings": True}, precision="bf16"),
            engine_at(engines["b"], "b", capabilities={"embeddings": True}, precision="fp16"),
        ],
        cache={"mode": "auto"},
    )
    await ask(cached, ["one"], model="m@a")
    await ask(cached, ["two"], model="m@b")
    for texts in (["one", "two"], ["one", "three"], ["two", "three"]):
        assert len(set(lengths(await ask(cached, texts)))) == 1, texts


async def test_what_an_engine_refuses_is_refused(cached: Gateway, engine: ScriptedEngine) -> None:
    engine.always(status(400, {"error": {"message": "not a text"}}))
    async with cached.client() as client:
        for texts in ([True], ["a"]):
            response = await client.post("/v1/embeddings", json={"model": "m", "input": texts})
            assert (response.status_code, response.json()["error"]["message"]) == (400, "not a text")
    engine.always(embed())
    await ask(cached, ["a"])
    assert len(engine.requests) == 3

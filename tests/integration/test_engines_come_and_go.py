"""Engines that are found, start late, die, come back, change: a whole gateway follows without being restarted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from engines.scripted import ScriptedEngine
from engines.scripts import chat, drop, whole
from engines.signals import Gate
from gateways import LIMIT_S, Gateway, chat_body, engine_at

Start = Callable[..., Gateway]
At = Callable[..., ScriptedEngine]

CHAT_PATH = "/v1/chat/completions"


@pytest.fixture
def at() -> Iterator[At]:
    """Starts scripted engines at a port (``at(port, kind="vllm")``) that end with the test."""
    with ExitStack() as stack:

        def start(port: int, **options: Any) -> ScriptedEngine:
            engine = ScriptedEngine(**options)
            engine.port = port
            return stack.enter_context(engine)

        yield start


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for engines, and after those that are down, often."""
    monkeypatch.setattr("gateway.assembly.DISCOVER_EVERY_S", 0.05)
    monkeypatch.setattr("gateway.engine.RETRY_FIRST_S", 0.05)
    monkeypatch.setattr("gateway.engine.RETRY_LONGEST_S", 0.05)


async def until_models(client: httpx.AsyncClient, *names: str) -> list[dict[str, Any]]:
    """Return the models once these are listed and can be served."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            models = (await client.get("/v1/models")).json()["data"]
            if [model["id"] for model in models] == list(names) and (await client.get("/ready")).status_code == 200:
                return list(models)


async def until_ready(client: httpx.AsyncClient, ready: bool) -> None:
    async with asyncio.timeout(LIMIT_S):
        while ((await client.get("/ready")).status_code == 200) is not ready:
            pass


async def test_an_engine_on_its_port_is_found_without_any_configuration(gateway: Start, at: At, port: int) -> None:
    at(port, kind="llamacpp", model="Tiny-Q4_K_M.gguf")
    running = gateway(discovery={"ports": [port]})
    async with running.client() as client:
        (model,) = (await client.get("/v1/models")).json()["data"]
        answer = await client.post(CHAT_PATH, json=chat_body(model="Tiny"))
    assert model["paceline"]["deployments"][0]["id"] == f"llamacpp-{port}"
    assert answer.status_code == 200


async def test_an_engine_that_starts_later_is_taken_in(gateway: Start, at: At, port: int) -> None:
    running = gateway(discovery={"ports": [port]})
    async with running.client() as client:
        assert (await client.get("/v1/models")).json()["data"] == []
        at(port, kind="vllm", model="late")
        await until_models(client, "late")
        assert (await client.post(CHAT_PATH, json=chat_body(model="late"))).status_code == 200


async def test_a_configured_engine_may_start_later(gateway: Start, at: At, port: int) -> None:
    running = gateway(engines=[{"name": "late", "url": f"http://127.0.0.1:{port}"}])
    async with running.client() as client:
        refused = await client.post(CHAT_PATH, json=chat_body(model="late"))
        at(port, kind="vllm", model="late")
        await until_models(client, "late")
        answer = await client.post(CHAT_PATH, json=chat_body(model="late"))
    assert refused.status_code == 404
    assert answer.status_code == 200


async def test_an_engine_that_died_is_not_ready_and_serves_again_when_it_is_back(
    gateway: Start, at: At, port: int
) -> None:
    first = at(port, kind="vllm")
    running = gateway(engines=[engine_at(first, "a")])
    async with running.client() as client:
        assert (await client.post(CHAT_PATH, json=chat_body())).status_code == 200
        first.stop()
        refused = await client.post(CHAT_PATH, json=chat_body())  # it is this request that finds out
        await until_ready(client, False)
        told = await client.post(CHAT_PATH, json=chat_body())
        at(port, kind="vllm")
        await until_ready(client, True)
        answer = await client.post(CHAT_PATH, json=chat_body())
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unreachable")
    assert (told.status_code, told.json()["error"]["code"]) == (503, "no_deployment_ready")
    assert "a: down" in told.json()["error"]["message"]
    assert answer.status_code == 200


async def test_an_engine_of_another_kind_in_its_place_is_recognised(gateway: Start, at: At, port: int) -> None:
    first = at(port, kind="llamacpp", model="tiny")
    running = gateway(discovery={"ports": [port]})
    async with running.client() as client:
        first.always(drop(b"HTTP/1.1 200"))
        await until_models(client, "tiny")
        first.stop()
        await client.post(CHAT_PATH, json=chat_body(model="tiny"))
        await until_ready(client, False)
        at(port, kind="vllm", model="tiny")
        await until_ready(client, True)
        answer = await client.post(CHAT_PATH, json=chat_body(model="tiny"))
    assert answer.headers["x-paceline-engine"] == "vllm"


async def test_other_models_of_an_engine_are_noticed_and_a_deployment_that_went_is_not_asked(
    gateway: Start, at: At, port: int
) -> None:
    engine = at(port, kind="openai", model="old")
    running = gateway(engines=[{"name": "a", "url": engine.url, "kind": "openai"}])
    (watched,) = running.house.fleet.engines
    async with running.client() as client:
        await until_models(client, "old")
        assert (await client.post(CHAT_PATH, json=chat_body(model="old"))).status_code == 200
        both = [{"id": name, "object": "model", "created": 1, "owned_by": "x"} for name in ("new", "old")]
        engine.routes["GET /v1/models"] = whole({"object": "list", "data": both})
        running.call(watched.look_again)
        await until_models(client, "new", "old")
        engine.routes["GET /v1/models"] = whole({"object": "list", "data": both[:1]})
        running.call(watched.look_again)
        await until_models(client, "new")
        gone = await client.post(CHAT_PATH, json=chat_body(model="old"))
        answer = await client.post(CHAT_PATH, json=chat_body(model="new"))
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")
    assert answer.status_code == 200


async def test_a_stream_outlives_the_change_that_removes_its_deployment(gateway: Start, at: At, port: int) -> None:
    gate = Gate()
    engine = at(port, kind="openai", model="old")
    engine.always(chat(gate=gate))
    running = gateway(engines=[{"name": "a", "url": engine.url, "kind": "openai"}])
    (watched,) = running.house.fleet.engines
    async with running.client() as client:
        call = asyncio.create_task(client.post(CHAT_PATH, json=chat_body(model="old", stream=True)))
        await engine.received(0)
        engine.routes["GET /v1/models"] = whole(
            {"object": "list", "data": [{"id": "new", "object": "model", "created": 1, "owned_by": "x"}]}
        )
        running.call(watched.look_again)
        await until_models(client, "new")
        gate.open()
        answer = await call
    assert "data: [DONE]" in answer.text
    assert running.inflight() == 0

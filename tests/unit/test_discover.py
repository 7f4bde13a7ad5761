"""Engines on this machine are found by their answers, in a given time, whatever else listens there."""

from __future__ import annotations

import asyncio

import pytest
from engines.recorded import play_ollama
from engines.scripts import hang, status, text, whole

from adapters.discover import OWN_PORT, Found, discover
from adapters.registry import USUAL_PORTS


@pytest.fixture
async def mute():
    """A port that accepts connections and says nothing."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.fixture
async def closed_port():
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


async def test_each_engine_is_found_by_what_it_answers(scripted, closed_port) -> None:
    llama, vllm, ollama = scripted(kind="llamacpp"), scripted(kind="vllm"), scripted()
    play_ollama(ollama, "0.24")
    ollama.always(status(404))
    found = await discover((vllm.port, closed_port, llama.port, ollama.port), limit_s=20)
    assert found == [
        Found("vllm", "vLLM", vllm.url),
        Found("llamacpp", "llama.cpp", llama.url),
        Found("ollama", "Ollama", ollama.url),
    ]


async def test_a_silent_port_costs_no_more_than_the_limit_and_hides_nobody(scripted, mute) -> None:
    engine, slow = scripted(kind="vllm"), scripted()
    slow.routes = {"GET /v1/models": hang()}
    async with asyncio.timeout(15):
        found = await discover((mute, engine.port, slow.port), limit_s=1.0)
    assert [one.url for one in found] == [engine.url]


async def test_other_servers_and_paceline_itself_are_not_found(scripted) -> None:
    page, own = scripted(), scripted()
    page.routes = {}
    page.always(text("<html>"))
    own.routes = {"GET /v1/models": whole({"object": "list", "data": [{"id": "m", "owned_by": "paceline"}]})}
    assert await discover((page.port, own.port), limit_s=20) == []


async def test_nothing_is_asked_on_pacelines_own_port() -> None:
    assert OWN_PORT not in USUAL_PORTS
    assert await discover((OWN_PORT,)) == []
    assert await discover(()) == []

"""The scripted engine itself: other tests believe what it says."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import warnings
from collections.abc import Callable

import pytest
from engines import scripts
from engines.scripted import ScriptedEngine
from engines.signals import Gate

from adapters.errors import Broken, Interrupted
from adapters.transport import Transport

Start = Callable[..., ScriptedEngine]
CHAT = "/v1/chat/completions"
STREAM = b'{"stream": true, "stream_options": {"include_usage": true}}'


@pytest.fixture
async def connect():
    opened: list[Transport] = []

    def connect(engine: ScriptedEngine) -> Transport:
        opened.append(Transport(engine.url))
        return opened[-1]

    yield connect
    for transport in opened:
        await transport.aclose()


@pytest.mark.parametrize("kind", ["openai", "llamacpp", "vllm", "lmstudio", "mlx"])
async def test_streams_and_answers_whole(scripted: Start, connect, kind: str) -> None:
    engine = scripted(kind=kind)
    transport = connect(engine)
    streamed = await (await transport.request("POST", CHAT, body=STREAM)).read()
    assert streamed.endswith(b"data: [DONE]\n\n")
    assert streamed.count(b"usage") == 1
    whole = await (await transport.request("POST", CHAT, body=b"{}")).read()
    assert b"Hello!" in whole
    assert engine.requests[0].json["stream"] is True
    assert transport.open_connections == (0 if kind == "mlx" else 1)


async def test_scripts_are_taken_in_order_and_the_standing_one_after_them(scripted: Start, connect) -> None:
    engine = scripted()
    engine.next(scripts.status(503, headers={"retry-after": "2"}), scripts.status(429))
    engine.always(scripts.text("plain"))
    transport = connect(engine)
    answers = [await transport.request("POST", CHAT, body=b"{}") for _ in range(3)]
    assert [answer.status for answer in answers] == [503, 429, 200]
    assert answers[0].headers["retry-after"] == "2"
    assert await answers[2].read() == b"plain"


@pytest.mark.parametrize("script", [scripts.silence(), scripts.stall(after=1)])
async def test_sees_its_client_leave_in_the_middle(scripted: Start, connect, script: scripts.Script) -> None:
    engine = scripted()
    engine.next(script)
    response = await connect(engine).request("POST", CHAT, body=STREAM)
    received = await engine.received(0)
    assert not received.left.is_set()
    response.close()
    await received.left.wait()
    assert received.left_at is not None
    assert not received.answered.is_set()


async def test_sees_its_client_leave_before_the_head(scripted: Start, connect) -> None:
    engine = scripted()
    engine.next(scripts.hang())
    call = asyncio.ensure_future(connect(engine).request("POST", CHAT, body=STREAM))
    received = await engine.received(0)
    call.cancel()
    await received.left.wait()


async def test_a_gate_sets_the_pace(scripted: Start, connect) -> None:
    engine, gate = scripted(), Gate()
    engine.next(scripts.chat(["a", "b"], gate=gate))
    response = await connect(engine).request("POST", CHAT, body=STREAM)
    for expected in (b'"role"', b'"a"', b'"b"'):
        gate.release()
        assert expected in await response.read_some()
    gate.open()
    assert (await response.read()).endswith(b"[DONE]\n\n")


async def test_cuts_where_it_is_told_to(scripted: Start, connect) -> None:
    engine = scripted()
    engine.next(scripts.drop(), scripts.cut(after=2, tail=b"data: {"), scripts.cut(after=2, clean=True))
    transport = connect(engine)
    with pytest.raises(Broken):
        await transport.request("POST", CHAT, body=STREAM)
    with pytest.raises(Interrupted):
        await (await transport.request("POST", CHAT, body=STREAM)).read()
    clean = await (await transport.request("POST", CHAT, body=STREAM)).read()
    assert b'"lo"' in clean
    assert b"[DONE]" not in clean


async def test_side_paths_do_not_take_a_script(scripted: Start, connect) -> None:
    engine = scripted(kind="vllm")
    engine.routes["GET /metrics"] = scripts.text("vllm:num_requests_running 1\n")
    transport = connect(engine)
    assert await (await transport.request("GET", "/version")).read() == b'{"version": "0.32.0"}'
    assert (await transport.request("GET", "/metrics")).status == 200
    assert [request.path for request in engine.watched] == ["/version", "/metrics"]
    assert engine.requests == []


def test_connections_of_its_last_moment_are_closed(scripted: Start) -> None:
    engine = scripted()
    busy = threading.Event()
    engine._loop.call_soon_threadsafe(busy.wait)
    clients = [socket.create_connection(("127.0.0.1", engine.port)) for _ in range(5)]
    threading.Timer(0.0, busy.set).start()
    with warnings.catch_warnings(record=True) as leaks:
        warnings.simplefilter("always", ResourceWarning)
        engine.stop()
        gc.collect()
    for client in clients:
        client.close()
    assert not [str(leak.message) for leak in leaks]

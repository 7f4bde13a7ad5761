"""Field lessons 1 to 7, clients and streams: a whole gateway, real sockets, engines that misbehave on command."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from engines.scripted import ScriptedEngine
from engines.scripts import chat, cut, hang, pieces, silence, stall
from engines.signals import Gate
from gateways import Gateway, chat_body, engine_at

Scripted = Callable[..., ScriptedEngine]
Start = Callable[..., Gateway]

KINDS = ("vllm", "llamacpp", "ollama")


async def events(response: httpx.Response) -> AsyncIterator[str]:
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            yield line.removeprefix("data:").strip()


async def text_of(response: httpx.Response) -> str:
    text = ""
    async for data in events(response):
        if data != "[DONE]":
            for choice in json.loads(data)["choices"]:
                text += choice["delta"].get("content") or ""
    return text


async def until_idle(gateway: Gateway) -> None:
    """Return once the ledger counts nothing; fails after the limit."""
    await asyncio.to_thread(gateway.wait_until_idle)


# Lesson 1: the client leaves


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
@pytest.mark.parametrize("script", [hang, silence], ids=["no headers yet", "headers sent, silent"])
async def test_a_client_that_leaves_before_the_first_byte_closes_the_upstream_connection_within_a_second(
    scripted: Scripted, gateway: Start, kind: str, stream: bool, script: Callable[[], Any]
) -> None:
    engine = scripted(kind=kind)
    engine.always(script())
    running = gateway(engines=[engine_at(engine, "a")])
    async with running.client() as client:
        call = asyncio.create_task(client.post("/v1/chat/completions", json=chat_body(stream=stream)))
        received = await engine.received(0)
        call.cancel()
        left_at = time.monotonic()
        await received.left.wait()
    assert received.left_at is not None
    assert received.left_at - left_at < 1.0
    await until_idle(running)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_that_leaves_in_mid_stream_closes_the_upstream_connection_within_a_second(
    scripted: Scripted, gateway: Start, kind: str
) -> None:
    engine = scripted(kind=kind)
    engine.always(stall(after=2))
    running = gateway(engines=[engine_at(engine, "a")])
    async with (
        running.client() as client,
        client.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as response,
    ):
        async for data in events(response):
            if "Hel" in data:
                break
        left_at = time.monotonic()
    received = await engine.received(0)
    await received.left.wait()
    assert received.left_at is not None
    assert received.left_at - left_at < 1.0
    await until_idle(running)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["off", "all"])
async def test_a_client_that_leaves_right_behind_the_last_event_has_had_a_whole_answer(
    scripted: Scripted, gateway: Start, kind: str, mode: str
) -> None:
    engine, gate = scripted(kind=kind), Gate()
    engine.always(chat(end=gate))
    running = gateway(engines=[engine_at(engine, "a")], cache={"mode": mode})
    async with running.client() as client:
        async with client.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as response:
            id_ = response.headers["x-request-id"]
            async for data in events(response):
                if data == "[DONE]":
                    break
        await until_idle(running)
        told = (await client.get(f"/admin/requests/{id_}")).json()
        again = await client.post("/v1/chat/completions", json=chat_body(stream=True)) if mode == "all" else None
    gate.open()
    assert told["ended"] == "done"
    assert again is None or again.headers["x-paceline-cache"] == "hit"


async def test_a_call_whose_client_left_counts_as_cancelled_and_not_as_a_failure(
    scripted: Scripted, gateway: Start
) -> None:
    engine = scripted(kind="vllm")
    engine.always(hang())
    running = gateway(engines=[engine_at(engine, "a")])
    async with running.client() as client:
        for index in range(5):  # more than it takes to open the breaker
            call = asyncio.create_task(client.post("/v1/chat/completions", json=chat_body()))
            received = await engine.received(index)
            call.cancel()
            await received.left.wait()
        engine.always(chat())
        answer = await client.post("/v1/chat/completions", json=chat_body())
    assert answer.status_code == 200


# Lesson 2: keep-alive


async def test_a_silent_prefill_is_bridged_by_comments_that_no_client_sees_as_content(
    scripted: Scripted, gateway: Start
) -> None:
    gate = Gate()
    engine = scripted(kind="vllm")
    engine.always(chat(gate=gate))
    running = gateway(engines=[engine_at(engine, "a")], server={"keepalive_s": 0.05})
    lines: list[str] = []
    async with (
        running.client() as client,
        client.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as response,
    ):
        assert response.status_code == 200
        async for line in response.aiter_lines():
            lines.append(line)
            if line.startswith(":") and len([each for each in lines if each.startswith(":")]) == 3:
                gate.release(2)  # the role and one token, then silence again
            if line.startswith(":") and len([each for each in lines if each.startswith(":")]) == 5:
                gate.open()
    content = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert (
        "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in content if chunk["choices"]) == "Hello!"
    )
    assert lines[0].startswith(":")
    assert any(line.startswith(":") for line in lines[lines.index(next(x for x in lines if "Hel" in x)) :])
    assert "data: [DONE]" in lines


async def test_after_a_keep_alive_the_next_engine_may_still_answer(scripted: Scripted, gateway: Start) -> None:
    first, second = scripted(kind="vllm"), scripted(kind="vllm")
    gate = Gate()

    async def dies_later(exchange: Any) -> None:
        await gate.pass_through()
        exchange.cut()

    first.always(dies_later)
    running = gateway(
        engines=[engine_at(first, "a", precision="fp32"), engine_at(second, "b", precision="bf16")],
        server={"keepalive_s": 0.05},
    )
    async with (
        running.client() as client,
        client.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as response,
    ):
        lines = []
        async for line in response.aiter_lines():
            lines.append(line)
            if line.startswith(":"):
                gate.open()
    assert "data: [DONE]" in lines
    assert len(second.requests) == 1


# Lesson 3: pace


@pytest.mark.parametrize("kind", KINDS)
async def test_each_chunk_is_forwarded_before_the_next_one_is_sent(
    scripted: Scripted, gateway: Start, kind: str
) -> None:
    gate = Gate()
    engine = scripted(kind=kind)
    engine.always(chat(["one", "two", "three"], gate=gate))
    running = gateway(engines=[engine_at(engine, "a")])
    seen = []
    async with running.client() as client:
        # A credit is given only after the last token has arrived: a gateway that collects would wait for ever.
        gate.release(2)
        async with client.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as response:
            async for data in events(response):
                for word in ("one", "two", "three"):
                    if f'"{word}"' in data:
                        seen.append(word)
                        gate.release(1 if word != "three" else 10)
    assert seen == ["one", "two", "three"]


# Lesson 4: the engine dies in mid-stream


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clean", [True, False], ids=["ended properly", "connection dropped"])
async def test_a_stream_that_is_cut_ends_with_an_error_event_and_without_done(
    scripted: Scripted, gateway: Start, kind: str, clean: bool
) -> None:
    first, second = scripted(kind=kind), scripted(kind=kind)
    first.always(cut(after=2, clean=clean))
    running = gateway(engines=[engine_at(first, "a", precision="fp32"), engine_at(second, "b", precision="bf16")])
    async with running.client() as client:
        body = chat_body(stream=True, model="m@a")
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            received = [data async for data in events(response)]
    assert "Hel" in "".join(received)
    error = json.loads(received[-1])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == "engine_interrupted"
    assert "[DONE]" not in received
    assert not second.requests, "nothing is retried after the first byte"


async def test_an_error_inside_a_good_stream_reaches_the_client_as_an_error(scripted: Scripted, gateway: Start) -> None:
    engine = scripted(kind="vllm")
    gate = Gate()
    token = b'data: {"id":"1","model":"engine-model","choices":[{"index":0,"delta":{"content":"Hel"}}]}\n\n'
    error = b'data: {"error":{"message":"out of memory","type":"server_error","code":500}}\n\n'
    engine.always(pieces(token, error, gate=gate))
    running = gateway(engines=[engine_at(engine, "a")])
    gate.release()
    received = []
    async with (
        running.client() as client,
        client.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as response,
    ):
        async for data in events(response):
            received.append(data)
            gate.open()
    assert "Hel" in received[0]
    assert "out of memory" in json.loads(received[-1])["error"]["message"]
    assert "[DONE]" not in received


async def test_a_cut_answer_that_was_not_streamed_is_answered_by_the_next_engine(
    scripted: Scripted, gateway: Start
) -> None:
    first, second = scripted(kind="vllm"), scripted(kind="vllm")
    first.always(cut(after=2))
    running = gateway(engines=[engine_at(first, "a", precision="fp32"), engine_at(second, "b", precision="bf16")])
    async with running.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat_body())
    assert answer.json()["choices"][0]["message"]["content"] == "Hello!"
    assert answer.headers["x-paceline-attempts"] == "2"
    assert answer.headers["x-paceline-deployment"] == "b"


# Lesson 5: usage


@pytest.mark.parametrize("kind", KINDS)
async def test_usage_is_learned_always_and_shown_only_to_those_who_asked(
    scripted: Scripted, gateway: Start, kind: str
) -> None:
    engine = scripted(kind=kind)
    running = gateway(engines=[engine_at(engine, "a")])
    async with running.client() as client:
        for asked in (True, False):
            options = {"stream_options": {"include_usage": True}} if asked else {}
            body = chat_body(stream=True, **options)
            async with client.stream("POST", "/v1/chat/completions", json=body) as response:
                chunks = [json.loads(data) async for data in events(response) if data != "[DONE]"]
            with_usage = [chunk for chunk in chunks if chunk.get("usage")]
            assert len(with_usage) == (1 if asked else 0)
            if asked:
                assert with_usage[0]["choices"] == []
                assert with_usage[0]["usage"]["completion_tokens"] > 0
            else:
                assert all(chunk["choices"] for chunk in chunks)
    for request in engine.requests:
        if kind != "ollama":
            assert request.json["stream_options"]["include_usage"] is True


# Lesson 6: nothing is lost


async def test_what_the_engine_sent_reaches_the_client_and_what_the_client_sent_reaches_the_engine(
    scripted: Scripted, gateway: Start
) -> None:
    engine = scripted(kind="openai")
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"a": '}}
    rest = {"index": 0, "function": {"arguments": '"ü\\n"}'}}
    engine.always(
        chat(
            [{"reasoning_content": "hmm"}, {"tool_calls": [call]}, {"tool_calls": [rest]}, {"odd_field": 7}],
            finish="tool_calls",
        )
    )
    running = gateway(engines=[engine_at(engine, "a", capabilities={"tools": True})])
    body = chat_body(
        seed=7,
        top_k=3,
        some_new_field={"deep": [1, 2.50, None]},
        tools=[{"type": "function", "function": {"name": "look", "parameters": {}}}],
    )
    async with running.client() as client:
        whole = (await client.post("/v1/chat/completions", json=body)).json()
        async with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
            streamed = [json.loads(data) async for data in events(response) if data != "[DONE]"]
    message = whole["choices"][0]["message"]
    assert message["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"a": "ü\\n"}'}
    assert message["tool_calls"][0]["id"] == "call_1"
    assert message["reasoning_content"] == "hmm"
    assert whole["choices"][0]["finish_reason"] == "tool_calls"
    deltas = [chunk["choices"][0]["delta"] for chunk in streamed if chunk["choices"]]
    assert {"tool_calls": [call]}.items() <= deltas[2].items()
    assert any("odd_field" in delta for delta in deltas)
    sent = engine.requests[0].json
    assert sent["seed"] == 7
    assert sent["top_k"] == 3
    assert sent["some_new_field"] == {"deep": [1, 2.5, None]}
    assert sent["tools"] == body["tools"]


@pytest.mark.parametrize(
    "blobs",
    [
        pytest.param([b"data: {C}\r\n\r\ndata: [DONE]\r\n\r\n"], id="CRLF"),
        pytest.param([b": hello\n\ndata: {C}\n\n:bye\n\ndata: [DONE]\n\n"], id="comments"),
        pytest.param([b"data:{C}\n\ndata:[DONE]\n\n"], id="no space after the colon"),
        pytest.param([b"data: {C}\n\ndata: [DONE]"], id="no final blank line"),
        pytest.param(
            [b'data: {"id":"1","model":"engine-model",\ndata: "choices":[{R}]}\n\ndata: [DONE]\n\n'], id="lines"
        ),
        pytest.param([b"event: message\nid: 4\ndata: {C}\n\ndata: [DONE]\n\n"], id="event and id fields"),
        pytest.param(None, id="a code point split across chunks"),
    ],
)
@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
async def test_odd_but_legal_events_are_understood(
    scripted: Scripted, gateway: Start, blobs: list[bytes] | None, stream: bool
) -> None:
    choice = '{"index":0,"delta":{"role":"assistant","content":"grün"},"finish_reason":"stop"}'.encode()
    chunk = b'{"id":"1","object":"chat.completion.chunk","created":1,"model":"engine-model","choices":[%b]}' % choice
    if blobs is None:
        whole = b"data: %b\n\ndata: [DONE]\n\n" % chunk
        middle = whole.index("ü".encode()) + 1
        blobs = [whole[:middle], whole[middle:]]
    else:
        blobs = [blob.replace(b"{C}", chunk).replace(b"{R}", choice) for blob in blobs]
    engine = scripted(kind="openai")
    engine.always(pieces(*blobs))
    running = gateway(engines=[engine_at(engine, "a")])
    async with running.client() as client:
        if stream:
            async with client.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as response:
                assert await text_of(response) == "grün"
        else:
            answer = await client.post("/v1/chat/completions", json=chat_body())
            assert answer.json()["choices"][0]["message"]["content"] == "grün"


# Lesson 7: names


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
async def test_the_model_in_the_answer_is_the_name_that_was_asked_for_and_the_headers_have_the_truth(
    scripted: Scripted, gateway: Start, kind: str, stream: bool
) -> None:
    engine = scripted(kind=kind)
    engine.always(chat(['"model":"engine-model"', " said the model"]))
    running = gateway(engines=[engine_at(engine, "a")], models={"m": {"aliases": ["gpt-4o"]}})
    asked = f"gpt-4o@{kind}"
    async with running.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat_body(model=asked, stream=stream))
    if stream:
        chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        assert {chunk["model"] for chunk in chunks} == {asked}
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    else:
        assert answer.json()["model"] == asked
        text = answer.json()["choices"][0]["message"]["content"]
    assert text == '"model":"engine-model" said the model'
    assert answer.headers["x-paceline-deployment"].startswith("a")
    assert answer.headers["x-paceline-engine"] == kind
    assert engine.requests[0].json["model"] == engine.model

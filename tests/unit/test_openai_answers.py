"""Answers of an OpenAI-speaking engine at their edges: odd shapes, bounds, late bytes, closed early."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from engines import scripts
from engines.scripted import Exchange, ScriptedEngine
from engines.subject import ASKED_NAME, Subject, read_all

from adapters import answers
from adapters.base import Endpoint
from adapters.errors import Broken
from adapters.openai_protocol import OpenAIAdapter
from adapters.registry import create
from policies.types import Operation

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Say hello."}]}
DONE = b"data: [DONE]\n\n"


@pytest.fixture
async def engine(scripted: Callable[..., ScriptedEngine]) -> AsyncIterator[Subject]:
    """An engine whose whole answers are joined out of a stream."""
    server = scripted(kind="openai")
    subject = Subject(create("openai", Endpoint("e", server.url)), server.model, server)
    yield subject
    await subject.adapter.aclose()


async def ask(subject: Subject, *scripted: scripts.Script, stream: bool = False, **options: Any) -> bytes:
    assert subject.scripted is not None
    subject.scripted.next(*scripted)
    return await read_all(await subject.adapter.send(subject.call(HELLO, stream=stream, **options)))


def data(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": ["x"]},
        {"choices": [{"index": 0, "delta": "x"}]},
        {"choices": [{"index": [], "delta": {}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": ["x"]}}]},
        {"choices": [{"index": 0, "text": 7}]},
        {"choices": 7},
    ],
)
async def test_an_event_of_a_shape_that_nobody_knows_is_broken_not_a_crash(
    engine: Subject, chunk: dict[str, Any]
) -> None:
    with pytest.raises(Broken) as caught:
        await ask(engine, scripts.pieces(data(chunk), DONE))
    assert caught.value.engine == "e"


async def test_a_joined_answer_has_a_bound(engine: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_BODY_BYTES", 2000)
    with pytest.raises(Broken, match="more than 2000 bytes"):
        await ask(engine, scripts.chat(["word"] * 100))
    assert engine.scripted is not None
    assert b"Hello" in await ask(engine, scripts.chat(["Hel", "lo"]))


@pytest.mark.parametrize("last", [b"", b"more that nobody reads"])
async def test_a_connection_that_breaks_behind_done_is_no_matter(engine: Subject, last: bytes) -> None:
    async def cut_behind_done(exchange: Exchange) -> None:
        await exchange.head(headers=scripts.SSE)
        await exchange.data(data({"choices": [{"index": 0, "delta": {"content": "x"}}]}) + DONE)
        await exchange.raw(last)
        exchange.cut()

    assert (await ask(engine, cut_behind_done, stream=True)).endswith(DONE)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_closed_early_says_nothing_more(engine: Subject, stream: bool) -> None:
    answer = await engine.adapter.send(engine.call(HELLO, stream=stream))
    answer.close()
    assert await answer.read() is None
    assert not answer.outcome.whole


# One body that passes through


async def test_a_whole_body_keeps_every_byte_but_the_models_name(engine: Subject) -> None:
    body = b'{"model":"m","data":[{"index":0,"embedding":[1.0,1e-9,0.10]}],"extra":{"a" : "\\u00e4"},"usage":{}}'
    got = await ask(engine, scripts.text(body), operation=Operation.EMBEDDINGS)
    assert got == body.replace(b'"model":"m"', f'"model":"{ASKED_NAME}"'.encode())


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model": "m", "echo": "m"}', b'{"model": "NAME", "echo": "m"}'),
        (b'{"m":"m","model":"m"}', b'{"m":"m","model":"NAME"}'),
        (b'{"echo":{"model":"m"},"model":"m"}', b'{"echo":{"model":"m"},"model":"NAME"}'),
        (b'{"say":"model","model":"m"}', b'{"say":"model","model":"NAME"}'),
        (b'{"model":null}', b'{"model":"NAME"}'),
    ],
)
async def test_the_models_name_is_replaced_in_its_own_place_only(engine: Subject, body: bytes, expected: bytes) -> None:
    got = await ask(engine, scripts.text(body), operation=Operation.EMBEDDINGS)
    assert got == expected.replace(b"NAME", ASKED_NAME.encode())


async def test_a_whole_body_without_a_name_gets_none(engine: Subject) -> None:
    assert await ask(engine, scripts.whole({"data": []}), operation=Operation.EMBEDDINGS) == b'{"data": []}'


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b'{"choices": 7}', b"\xff"])
async def test_a_whole_body_that_is_nonsense_is_broken(engine: Subject, body: bytes) -> None:
    with pytest.raises(Broken, match="JSON object"):
        await ask(engine, scripts.text(body), operation=Operation.EMBEDDINGS)


async def test_a_whole_body_that_is_cut_may_be_asked_of_another(engine: Subject) -> None:
    async def cut(exchange: Exchange) -> None:
        await exchange.head(headers={"content-type": "application/json"}, length=1000)
        await exchange.data(b'{"data": [')
        exchange.cut()

    with pytest.raises(Broken):
        await ask(engine, cut, operation=Operation.EMBEDDINGS)


async def test_an_error_in_a_whole_body_is_an_error(engine: Subject) -> None:
    with pytest.raises(Broken, match="it died"):
        await ask(engine, scripts.whole({"error": {"message": "it died"}}), operation=Operation.EMBEDDINGS)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"choices": []}'])
async def test_one_body_in_place_of_a_stream_is_broken(engine: Subject, body: bytes) -> None:
    with pytest.raises(Broken, match="asked for a stream"):
        await ask(engine, scripts.text(body, headers={"content-type": "application/json"}), stream=True)


async def test_a_refusal_whose_reason_never_comes_is_told_by_its_status(
    engine: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def half(exchange: Exchange) -> None:
        await exchange.head(500, length=1000)
        await exchange.data(b'{"error":')
        exchange.cut()

    with pytest.raises(Broken, match="500"):
        await ask(engine, half)


# What is asked for


@pytest.mark.parametrize(
    ("operation", "fields", "finished", "whole"),
    [
        (Operation.CHAT, {"n": 2}, 1, False),
        (Operation.CHAT, {"n": 2}, 2, True),
        (Operation.CHAT, {"n": "many"}, 1, True),
        (Operation.COMPLETION, {"prompt": ["a", "b"], "n": 2}, 3, False),
        (Operation.COMPLETION, {"prompt": ["a", "b"], "n": 2}, 4, True),
        (Operation.COMPLETION, {"prompt": [1, 2, 3]}, 1, True),
    ],
)
async def test_without_a_done_every_choice_that_was_asked_for_has_to_finish(
    engine: Subject, operation: Operation, fields: dict[str, Any], finished: int, whole: bool
) -> None:
    choices = [{"index": i, "text": "x", "delta": {"content": "x"}, "finish_reason": "stop"} for i in range(finished)]
    assert engine.scripted is not None
    engine.scripted.next(scripts.pieces(data({"choices": choices})))
    call = engine.call({**HELLO, **fields}, operation, stream=True)
    answer = await engine.adapter.send(call)
    if whole:
        assert (await read_all(answer)).endswith(DONE)
    else:
        with pytest.raises(Exception, match="before the answer was complete"):
            await read_all(answer)


async def test_stream_options_that_are_no_object_are_the_clients_mistake(engine: Subject) -> None:
    with pytest.raises(Exception, match="stream_options") as caught:
        await engine.adapter.send(engine.call({**HELLO, "stream_options": 7}, stream=True))
    assert type(caught.value).__name__ == "Rejected"


@pytest.mark.parametrize("url", ["{}", "{}/", "{}/v1", "{}/v1/"])
async def test_an_address_may_end_in_v1(engine: Subject, url: str) -> None:
    assert engine.scripted is not None
    adapter = create("openai", Endpoint("e", url.format(engine.scripted.url)))
    assert isinstance(adapter, OpenAIAdapter)
    await read_all(await adapter.send(engine.call(HELLO)))
    assert engine.scripted.requests[0].path == "/v1/chat/completions"
    await adapter.aclose()

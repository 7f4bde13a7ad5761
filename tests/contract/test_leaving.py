"""A client that leaves: the engine is told at once, and stops working as soon as it can."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from engines import scripts
from engines.signals import LIMIT_S, Gate
from engines.subject import Subject, eventually, rested

from adapters.base import Answer

STORY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell me a very long story about a river."}],
    "max_tokens": 1500,
    "temperature": 0.8,
}
LONG = {"messages": [{"role": "user", "content": " ".join(f"w{i}" for i in range(420))}], "max_tokens": 400}
FREE_WITHIN_S = 15.0
"""Far less than what was left to do when the client left; how much there was is printed."""


# Scripted: the connection is closed at once, whatever the engine is doing


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_before_the_head_closes_the_connection(played: Subject, stream: bool) -> None:
    assert played.scripted is not None
    played.scripted.always(scripts.hang())
    sending = asyncio.ensure_future(played.adapter.send(played.call(STORY, stream=stream)))
    received = await played.scripted.received(0)
    sending.cancel()
    await received.left.wait()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_leaving_before_the_first_byte_closes_the_connection(played: Subject, stream: bool, how: str) -> None:
    assert played.scripted is not None
    played.scripted.always(scripts.silence())
    answer = await played.adapter.send(played.call(STORY, stream=stream))
    received = await played.scripted.received(0)
    await leave(answer, how)
    await received.left.wait()


@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_leaving_mid_stream_closes_the_connection(played: Subject, how: str) -> None:
    assert played.scripted is not None
    played.scripted.always(scripts.stall(after=1))
    answer = await played.adapter.send(played.call(STORY, stream=True))
    while not answer.outcome.output_chunks:
        assert await answer.read() is not None
    received = await played.scripted.received(0)
    assert not received.left.is_set()
    await leave(answer, how)
    await received.left.wait()
    assert not answer.outcome.whole


async def test_closing_a_finished_answer_keeps_the_connection(played: Subject) -> None:
    assert played.scripted is not None
    if played.scripted.http10:
        pytest.skip("HTTP/1.0 has no connection to keep")
    for _ in range(3):
        await played.stream({**STORY, "max_tokens": 3})
        await rested(played.adapter)
        await played.whole({**STORY, "max_tokens": 3})
        await rested(played.adapter)
    assert played.scripted.accepted == 1
    assert not any(request.left.is_set() for request in played.scripted.requests)


async def test_an_answer_is_over_before_its_last_bytes_and_its_connection_stays_for_the_next(played: Subject) -> None:
    assert played.scripted is not None
    if played.scripted.http10:
        pytest.skip("HTTP/1.0 has no connection to keep")
    gate = Gate()
    played.scripted.next(scripts.chat(end=gate))
    answer = await played.adapter.send(played.call(STORY, stream=True))
    while not answer.outcome.whole:
        assert await answer.read() is not None
    assert await answer.read() is None
    answer.close()
    gate.open()
    await rested(played.adapter)
    await played.stream({**STORY, "max_tokens": 3})
    assert played.scripted.accepted == 1


async def leave(answer: Answer, how: str) -> None:
    if how == "close":
        answer.close()
        answer.close()  # may be said twice
        return
    reading = asyncio.ensure_future(answer.read())
    await asyncio.sleep(0)  # it waits for bytes now
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


# Real: the engine stops working


async def free_again(subject: Subject, case: str) -> None:
    """Wait until the engine says that it works on nothing."""

    async def idle() -> bool:
        load = await subject.adapter.load()
        return not load.running and not load.waiting

    took = await eventually(idle, every_s=0.25, limit_s=FREE_WITHIN_S, what="the engine's slot is free again")
    print(f"{subject.adapter.label}, {case}: free again {took:.2f} s after its client left")


async def busy(subject: Subject) -> bool:
    return bool((await subject.adapter.load()).running)


@pytest.fixture
def watched(real: Subject) -> Subject:
    if real.adapter.kind not in ("builtin", "llamacpp", "vllm"):
        pytest.skip("this engine does not say what it works on")
    return real


@pytest.mark.parametrize("stream", [False, True])
async def test_the_engine_stops_when_its_client_leaves_in_the_middle(watched: Subject, stream: bool) -> None:
    call = watched.call(STORY, stream=stream)
    if stream or watched.adapter.always_stream:
        answer = await watched.adapter.send(call)
        while answer.outcome.output_chunks < 3:
            assert await answer.read() is not None
        answer.close()
    else:
        await leave_while_busy(watched, call)
    await free_again(watched, "decoding")


@pytest.mark.parametrize("stream", [False, True])
async def test_the_engine_stops_when_its_client_leaves_during_prefill(watched: Subject, stream: bool) -> None:
    call = watched.call(LONG, stream=stream)
    if watched.adapter.kind == "llamacpp":
        answer = await first_sign(watched, call)
        while (answer.outcome.prefill_done or 0) < 100:
            assert await answer.read() is not None
        assert answer.outcome.output_chunks == 0
        answer.close()
    else:
        await leave_while_busy(watched, call)
    await free_again(watched, "prefill")


async def leave_while_busy(subject: Subject, call: Any) -> None:
    """Leave as soon as the engine is seen at work: by closing the answer, if its first byte came meanwhile."""
    sending = asyncio.ensure_future(first_sign(subject, call))
    await eventually(lambda: busy(subject), every_s=0.05, limit_s=LIMIT_S, what="the engine begins")
    sending.cancel()
    with suppress(asyncio.CancelledError):
        (await sending).close()


async def test_a_request_that_waits_for_its_turn_goes_when_its_client_goes(watched: Subject) -> None:
    slots = (await watched.model()).slots
    if slots is None:
        pytest.skip("this engine lets nobody wait for a slot")
    running = [await watched.adapter.send(watched.call(STORY, stream=True)) for _ in range(slots)]
    for answer in running:
        while not answer.outcome.output_chunks:
            assert await answer.read() is not None
    waiting = asyncio.ensure_future(first_sign(watched, watched.call(LONG, stream=True)))

    async def queued() -> bool:
        return bool((await watched.adapter.load()).waiting)

    await eventually(queued, every_s=0.1, limit_s=LIMIT_S, what="the request waits")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    for answer in running:
        answer.close()
    await free_again(watched, "queued")


async def first_sign(subject: Subject, call: Any) -> Answer:
    answer = await subject.adapter.send(call)
    await answer.read()
    return answer

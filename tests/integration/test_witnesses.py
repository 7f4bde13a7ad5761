"""Whoever watches requests is told of each once, at its end; what is wrong with a watcher is no request's fault."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest
from engines.scripted import ScriptedEngine
from engines.scripts import chat, cut, status
from engines.signals import Gate
from gateways import Gateway, chat_body, engine_at

from gateway.exchange import Exchange

Scripted = Callable[..., ScriptedEngine]
Start = Callable[..., Gateway]


class Notes:
    """Keeps every exchange that has ended."""

    def __init__(self) -> None:
        self.seen: list[Exchange] = []

    def ended(self, exchange: Exchange) -> None:
        self.seen.append(exchange)


class Broken:
    """Fails each time that it is told of a request."""

    def __init__(self) -> None:
        self.told = 0

    def ended(self, exchange: Exchange) -> None:
        self.told += 1
        raise ZeroDivisionError


def watched(running: Gateway) -> Notes:
    notes = Notes()
    running.house.witnesses.append(notes)
    return notes


async def test_a_retried_request_is_told_once_with_both_attempts(scripted: Scripted, gateway: Start) -> None:
    first, second = scripted(kind="vllm"), scripted(kind="vllm")
    first.always(status(503))
    running = gateway(engines=[engine_at(first, "a"), engine_at(second, "b")])
    notes = watched(running)
    async with running.client() as client:
        await client.post("/v1/chat/completions", json=chat_body(), headers={"x-paceline-deployment": "a"})
        answers = [await client.post("/v1/chat/completions", json=chat_body()) for _ in range(2)]
    assert all(answer.status_code == httpx.codes.OK for answer in answers)
    refused, retried = notes.seen[0], notes.seen[1:]
    assert refused.error is not None
    assert refused.ended == "failed"
    assert [(each.ended, each.error) for each in retried] == [("done", None)] * 2
    for each in retried:
        last = each.tries[-1]
        assert last.error is None
        assert all(one.error is not None for one in each.tries[:-1])
        assert each.arrived_at <= each.routed_at <= last.started_at <= last.opened_at <= last.ended_at <= each.ended_at


async def test_a_request_that_nobody_can_serve_is_told_as_refused(scripted: Scripted, gateway: Start) -> None:
    running = gateway(engines=[engine_at(scripted(kind="vllm"), "a")])
    notes = watched(running)
    async with running.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat_body(model="unknown"))
    (told,) = notes.seen
    assert told.ended == "refused"
    assert told.error is not None
    assert told.error.status == answer.status_code
    assert told.tries == []


async def test_a_stream_that_breaks_off_is_told_as_failed_also_where_others_might_have_read_along(
    scripted: Scripted, gateway: Start
) -> None:
    engine = scripted(kind="vllm")
    engine.always(cut())
    running = gateway(engines=[engine_at(engine, "a")], cache={"mode": "all"})
    notes = watched(running)
    async with running.client() as client:
        await client.post("/v1/chat/completions", json=chat_body(stream=True))
    assert [each.ended for each in notes.seen] == ["failed"]


async def test_a_wait_for_a_place_is_told(scripted: Scripted, gateway: Start) -> None:
    engine, gate = scripted(kind="vllm"), Gate()
    engine.always(chat(gate=gate))
    running = gateway(engines=[engine_at(engine, "a")], limits={"max_concurrent": 1})
    notes = watched(running)
    async with running.client() as client, running.client() as other:
        asking = [asyncio.create_task(each.post("/v1/chat/completions", json=chat_body())) for each in (client, other)]
        async with asyncio.timeout(20):
            while not await asyncio.to_thread(running.call, lambda: running.house.admission.waiting):
                pass
        gate.open()
        await asyncio.gather(*asking)
    waits = sorted(each.waited_s for each in notes.seen)
    assert waits[0] == 0.0
    assert waits[1] > 0.0


async def test_a_watcher_that_fails_is_told_of_no_request_any_more(
    scripted: Scripted, gateway: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running = gateway(engines=[engine_at(scripted(kind="vllm"), "a")])
    broken = Broken()
    running.house.witnesses.append(broken)
    notes = watched(running)
    async with running.client() as client:
        answers = [await client.post("/v1/chat/completions", json=chat_body()) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert broken.told == 1
    assert len(notes.seen) == 2
    assert sum("Broken failed" in record.message for record in caplog.records) == 1

"""The end of a real `paceline up`: what runs may finish, what does not is told so, no engine of ours stays behind."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import psutil
import pytest
from engines import llama
from engines.processes import wait_gone
from engines.scripted import ScriptedEngine
from engines.scripts import chat, hang, stall
from engines.signals import Gate
from gateways import LIMIT_S, chat_body
from shell import Running, Shell

CHAT_PATH = "/v1/chat/completions"


def start(shell: Shell, engine: ScriptedEngine, graceful_stop_s: float) -> Running:
    shell.configure(
        f"""
        server: {{graceful_stop_s: {graceful_stop_s}}}
        engines: [{{name: near, url: '{engine.url}'}}]
        routing: {{measure_at_start: false}}
        """
    )
    return shell.up()


@asynccontextmanager
async def streaming(running: Running) -> AsyncIterator[AsyncIterator[str]]:
    """A stream that has begun: its data lines from the second token on."""
    async with (
        httpx.AsyncClient(base_url=running.url, timeout=LIMIT_S) as client,
        client.stream("POST", CHAT_PATH, json=chat_body(model="tiny", stream=True)) as response,
    ):
        lines = (line async for line in response.aiter_lines() if line.startswith("data: "))
        async for line in lines:
            if "Hel" in line:
                break
        yield lines


async def until_refused(running: Running) -> None:
    """Return once it accepts no connection any more."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                async with httpx.AsyncClient() as client:
                    await client.get(running.url + "/health")
            except httpx.TransportError:
                return


async def ended(running: Running) -> int:
    return await asyncio.to_thread(running.process.wait, LIMIT_S)


# Requests


async def test_it_stops_accepting_at_once_and_lets_a_stream_finish(shell: Shell, engine: ScriptedEngine) -> None:
    gate = Gate(2)  # the role and the first token
    engine.always(chat(gate=gate))
    running = start(shell, engine, graceful_stop_s=30)
    async with streaming(running) as lines:
        running.process.send_signal(signal.SIGTERM)
        await until_refused(running)
        assert running.process.poll() is None
        gate.open()
        rest = [line async for line in lines]
    assert rest[-1] == "data: [DONE]"
    assert "error" not in "".join(rest)
    assert await ended(running) == 0


async def test_past_the_limit_a_stream_ends_with_an_error_event_and_without_done(
    shell: Shell, engine: ScriptedEngine
) -> None:
    engine.always(stall(after=1))
    running = start(shell, engine, graceful_stop_s=0.2)
    async with streaming(running) as lines:
        running.process.send_signal(signal.SIGTERM)
        rest = [line.removeprefix("data: ") async for line in lines]
    assert [json.loads(line)["error"]["code"] for line in rest] == ["stopping"]
    received = await engine.received(0)
    await received.left.wait()
    assert await ended(running) == 0


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
async def test_past_the_limit_a_request_without_an_answer_gets_a_503(
    shell: Shell, engine: ScriptedEngine, stream: bool
) -> None:
    engine.always(hang())
    running = start(shell, engine, graceful_stop_s=0.2)
    async with httpx.AsyncClient(base_url=running.url, timeout=LIMIT_S) as client:
        call = asyncio.create_task(client.post(CHAT_PATH, json=chat_body(model="tiny", stream=stream)))
        received = await engine.received(0)
        running.process.send_signal(signal.SIGTERM)
        answer = await call
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "stopping")
    assert int(answer.headers["retry-after"]) >= 1
    await received.left.wait()
    assert await ended(running) == 0


async def test_whoever_waits_for_a_place_gets_a_503_as_well(shell: Shell, engine: ScriptedEngine) -> None:
    engine.always(hang())
    shell.configure(
        f"""
        server: {{graceful_stop_s: 0.2}}
        engines: [{{name: near, url: '{engine.url}'}}]
        routing: {{measure_at_start: false}}
        limits: {{max_concurrent: 1}}
        """
    )
    running = shell.up()
    async with httpx.AsyncClient(base_url=running.url, timeout=LIMIT_S) as client:
        calls = [asyncio.create_task(client.post(CHAT_PATH, json=chat_body(model="tiny"))) for _ in range(3)]
        await engine.received(0)
        running.process.send_signal(signal.SIGTERM)
        answers = await asyncio.gather(*calls, return_exceptions=True)
    told = [answer.status_code for answer in answers if isinstance(answer, httpx.Response)]
    # A connection that the server had not accepted yet is refused; nobody is left without an answer.
    assert told
    assert set(told) == {503}
    assert all(isinstance(answer, httpx.Response | httpx.TransportError) for answer in answers)
    assert await ended(running) == 0


async def test_a_second_interrupt_does_not_wait(shell: Shell, engine: ScriptedEngine) -> None:
    engine.always(stall(after=1))
    running = start(shell, engine, graceful_stop_s=600)
    async with streaming(running):
        running.process.send_signal(signal.SIGINT)
        await until_refused(running)
        running.process.send_signal(signal.SIGINT)
        await ended(running)


def test_an_idle_one_stops_at_once_without_a_word_of_error(shell: Shell, engine: ScriptedEngine) -> None:
    running = start(shell, engine, graceful_stop_s=600)
    running.get("/health")
    assert running.stop() == 0
    log = running.log.read_text()
    assert "Traceback" not in log
    assert "ERROR" not in log


# Engines that are ours


LAUNCH = """
engines:
- name: own
  launch: {{engine: llamacpp, model: '{model}', context: 512, slots: 1, threads: 1, alias: smol}}
routing: {{measure_at_start: {measure}}}
"""

Managed = Callable[..., Running]


@pytest.fixture
def managed(shell: Shell) -> Managed:
    """Starts a `paceline up` with a llama.cpp of its own, and returns once that serves."""
    pytest.importorskip("xllamacpp", reason="NO REAL LLAMA.CPP: install paceline[llamacpp]")

    def start(*, measure: bool = False) -> Running:
        shell.configure(LAUNCH.format(model=llama.gguf(), measure=str(measure).lower()))
        return shell.up()

    return start


async def fleet_once(running: Running, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return what /admin/fleet says once it says something."""
    async with asyncio.timeout(120), httpx.AsyncClient(base_url=running.url) as client:
        while True:
            said: dict[str, Any] = (await client.get("/admin/fleet")).json()
            if condition(said):
                return said
            await asyncio.sleep(0.1)  # a real engine loads meanwhile, on the same cores


def serves(said: dict[str, Any]) -> bool:
    return said["deployments"][0]["state"] in ("up", "unmeasured")


def measured_and_settled(said: dict[str, Any]) -> bool:
    return bool(said["measuring"]["settled"]) and said["deployments"][0]["state"] == "up"


def descendants(running: Running) -> list[int]:
    return [child.pid for child in psutil.Process(running.process.pid).children(recursive=True)]


def first_descendants(running: Running) -> list[int]:
    """Return the processes that it has started, once there are any."""
    end = time.monotonic() + LIMIT_S
    while not (pids := descendants(running)):
        assert time.monotonic() < end, "no engine was started"
        time.sleep(0.01)
    return pids


@pytest.mark.llamacpp
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
async def test_an_engine_of_ours_is_gone_after_the_gateway(managed: Managed, number: signal.Signals) -> None:
    running = managed()
    await fleet_once(running, serves)
    pids = descendants(running)
    assert pids
    running.process.send_signal(number)
    code = await ended(running)
    assert code == (0 if number is signal.SIGTERM else -signal.SIGKILL)
    await asyncio.to_thread(wait_gone, pids)


@pytest.mark.llamacpp
async def test_an_engine_of_ours_is_gone_also_when_the_gateway_is_stopped_while_it_loads(managed: Managed) -> None:
    running = managed()
    pids = await asyncio.to_thread(first_descendants, running)
    running.process.send_signal(signal.SIGTERM)
    assert await ended(running) == 0
    await asyncio.to_thread(wait_gone, pids)


@pytest.mark.llamacpp
async def test_a_second_start_needs_no_measurement(managed: Managed) -> None:
    running = managed(measure=True)
    first = await fleet_once(running, measured_and_settled)
    assert first["measuring"]["done"] >= 1
    (measured,) = first["deployments"]
    assert running.stop() == 0
    again = await fleet_once(managed(measure=True), measured_and_settled)
    (recalled,) = again["deployments"]
    assert again["measuring"]["done"] == 0
    assert recalled["fingerprint"] == measured["fingerprint"]
    assert recalled["measured"] == measured["measured"]

"""`x-paceline-deadline-ms`: what nobody can finish in time is refused at once, and retries end with the time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from engines.scripted import Exchange, ScriptedEngine
from engines.scripts import chat, status, whole
from engines.signals import Gate
from fleets import samples
from gateways import Gateway, chat_body, engine_at

Scripted = Callable[..., ScriptedEngine]
Start = Callable[..., Gateway]

CHAT = "/v1/chat/completions"
DEADLINE = "x-paceline-deadline-ms"


def idle(engine: ScriptedEngine) -> ScriptedEngine:
    """Make an engine's gauges say that nothing runs there."""
    engine.routes["GET /slots"] = whole([{"id": i, "n_ctx": 2048, "is_processing": False} for i in (0, 1)])
    engine.routes.pop("GET /metrics", None)
    return engine


def measure(gateway: Gateway, **speeds: tuple[float, float]) -> None:
    """Give engines a measurement: prompt tokens and output tokens per second."""
    for deployment in gateway.house.fleet.deployments:
        if deployment.endpoint in speeds:
            gateway.call(gateway.house.fleet.learned.measured, deployment, samples(*speeds[deployment.endpoint]))


def apart(**engines: ScriptedEngine) -> list[dict[str, Any]]:
    """Engines on machines of their own, so that each has a measurement of its own."""
    return [engine_at(idle(engine), name, hardware={"host": f"host {name}"}) for name, engine in engines.items()]


async def ask(client: httpx.AsyncClient, deadline: object, text: str = "hi", **more: Any) -> httpx.Response:
    return await client.post(CHAT, json=chat_body(text, **more), headers={DEADLINE: str(deadline)})


async def test_what_nobody_can_finish_in_time_is_refused_at_once_with_the_best_estimate(
    scripted: Scripted, gateway: Start
) -> None:
    slow, slower = scripted(kind="llamacpp"), scripted(kind="llamacpp")
    running = gateway(engines=apart(a=slow, b=slower))
    measure(running, a=(100.0, 20.0), b=(100.0, 10.0))
    async with running.client() as client:
        answer = await ask(client, 2000, max_tokens=101)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (503, "deadline", "server_error")
    assert error["param"] == DEADLINE
    assert error["estimate"]["deployment"] == "a"
    assert error["estimate"]["total_ms"] == pytest.approx(5000, rel=0.1)
    assert float(answer.headers["x-paceline-predicted-total-ms"]) == pytest.approx(error["estimate"]["total_ms"], abs=1)
    assert "a, the nearest to it, would take about 5." in error["message"]
    assert "even with nothing else running" in error["message"]
    assert int(answer.headers["retry-after"]) == 60
    assert slow.requests == slower.requests == []


async def test_what_can_be_finished_in_time_is_served_and_so_is_who_names_no_deadline(
    scripted: Scripted, gateway: Start
) -> None:
    running = gateway(engines=[engine_at(idle(scripted(kind="llamacpp")), "a")])
    measure(running, a=(100.0, 20.0))
    async with running.client() as client:
        in_time = await ask(client, 20_000, max_tokens=101)
        whenever = await client.post(CHAT, json=chat_body(max_tokens=1001))
    assert in_time.status_code == whenever.status_code == 200


async def test_nobody_is_refused_while_a_deployment_may_be_fast_enough_for_all_that_is_known(
    scripted: Scripted, gateway: Start
) -> None:
    running = gateway(engines=apart(a=scripted(kind="llamacpp"), b=scripted(kind="llamacpp")))
    measure(running, a=(100.0, 20.0))
    async with running.client() as client:
        answer = await ask(client, 1000, max_tokens=101)
    assert answer.status_code == 200


async def test_when_others_make_it_late_the_answer_says_when_it_would_fit(scripted: Scripted, gateway: Start) -> None:
    gate = Gate()
    engine = idle(scripted(kind="llamacpp"))
    engine.always(chat(gate=gate))
    running = gateway(engines=[engine_at(engine, "a", slots=2)])
    measure(running, a=(1000.0, 20.0))
    async with running.client() as client:
        others = [asyncio.create_task(client.post(CHAT, json=chat_body(max_tokens=100))) for _ in range(4)]
        await engine.received(3)
        answer = await ask(client, 2000, max_tokens=20)
        gate.open()
        await asyncio.gather(*others)
        later = await ask(client, 2000, max_tokens=20)
    assert answer.status_code == 503
    error = answer.json()["error"]
    assert "s of it for other requests" in error["message"]
    assert int(answer.headers["retry-after"]) == pytest.approx(error["estimate"]["total_ms"] / 1000 - 2, abs=1.1)
    assert later.status_code == 200


@pytest.mark.parametrize("value", ["soon", "-5", "0", "1.5", "1e3", "nan", "9" * 12])
async def test_a_deadline_that_is_no_number_of_milliseconds_is_refused_by_name(
    scripted: Scripted, gateway: Start, value: str
) -> None:
    engine = scripted(kind="llamacpp")
    running = gateway(engines=[engine_at(engine, "a")])
    async with running.client() as client:
        answer = await ask(client, value)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["type"]) == (400, DEADLINE, "invalid_request_error")
    assert DEADLINE in error["message"]
    assert value[:40] in error["message"]
    assert engine.requests == []


async def test_nothing_is_retried_once_the_time_is_over(scripted: Scripted, gateway: Start) -> None:
    failing, other = scripted(kind="llamacpp"), scripted(kind="llamacpp")

    async def fails_late(exchange: Exchange) -> None:
        await asyncio.sleep(0.3)  # more than the first request has
        await status(500)(exchange)

    failing.always(fails_late)
    running = gateway(engines=[engine_at(failing, "a", precision="fp16"), engine_at(other, "b", precision="int4")])
    async with running.client() as client:
        late = await ask(client, 200, model="m@int4+")
        in_time = await ask(client, 20_000, model="m@int4+")
    assert late.status_code == 502
    assert len(failing.requests) == 2
    assert (in_time.status_code, in_time.headers["x-paceline-deployment"]) == (200, "b")
    assert len(other.requests) == 1


async def test_a_retry_goes_to_who_can_still_make_it(scripted: Scripted, gateway: Start) -> None:
    first, slow, fast = (scripted(kind="llamacpp") for _ in range(3))
    first.always(status(500))
    running = gateway(engines=apart(a=first, b=slow, c=fast))
    measure(running, a=(8000.0, 900.0), b=(1000.0, 5.0), c=(1000.0, 400.0))
    async with running.client() as client:
        answer = await ask(client, 5000, max_tokens=101)
    assert (answer.status_code, answer.headers["x-paceline-deployment"]) == (200, "c")
    assert slow.requests == []


async def test_a_loading_model_is_waited_for_no_longer_than_the_deadline(scripted: Scripted, gateway: Start) -> None:
    engine = scripted(kind="llamacpp")
    engine.always(status(503, {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}))
    running = gateway(engines=[engine_at(engine, "a")])
    async with running.client() as client:
        engine.routes["GET /health"] = status(503, {"error": {"message": "Loading model", "code": 503}})
        answer = await ask(client, 400)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_loading")

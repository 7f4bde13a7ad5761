"""What is measured in the background, when, and for which reason: a whole gateway with scripted engines."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from engines.scripted import Exchange, Received, ScriptedEngine
from engines.scripts import chat, stall, status, whole
from fleets import samples
from gateways import LIMIT_S, Gateway, chat_body, engine_at

from gateway import app as gateway_app
from gateway import probing as gateway_probing
from gateway import quiet as gateway_quiet
from gateway import speeds as gateway_speeds
from gateway.incoming import read_request
from measure.quick import OUTPUT_TOKENS
from policies.types import Deployment, Observation, Operation

Scripted = Callable[..., ScriptedEngine]
Start = Callable[..., Gateway]
Entry = dict[str, Any]

MEASURED = {"measure_at_start": True}
PROBING = {"probe_after_s": 0.2, "probe_share": 0.2}
CHAT = "/v1/chat/completions"


def idle(engine: ScriptedEngine) -> ScriptedEngine:
    """Let an engine answer measurements as it should, and its gauges say that nothing runs there."""
    engine.routes["GET /slots"] = whole([{"id": i, "n_ctx": 2048, "is_processing": False} for i in (0, 1)])
    engine.always(answer)
    return engine


async def answer(exchange: Exchange) -> None:
    """As many tokens as were asked for."""
    await chat(["word "] * exchange.request.json["max_tokens"], prompt_tokens=40)(exchange)


def elsewhere(engine: ScriptedEngine, name: str = "a", **more: Any) -> dict[str, Any]:
    """An engine on a machine whose cores this one does not see."""
    return engine_at(idle(engine), name, **{"hardware": {"host": "elsewhere"}, **more})


def only(gateway: Gateway) -> Deployment:
    (deployment,) = gateway.house.fleet.deployments
    return deployment


def measure(gateway: Gateway, prefill_per_s: float = 100.0, decode_per_s: float = 20.0) -> None:
    """Give the one deployment a measurement."""
    gateway.call(gateway.house.fleet.learned.measured, only(gateway), samples(prefill_per_s, decode_per_s))


def outcomes(gateway: Gateway, slower: float, count: int = 25) -> None:
    """Let requests end that took so many times longer than ``measure`` says."""
    deployment, predictor = only(gateway), gateway.house.fleet.learned.predictor

    def observe() -> None:
        for _ in range(count):
            seen = Observation(
                deployment=deployment.id,
                fingerprint=deployment.fingerprint,
                prompt_tokens=100,
                output_tokens=21,
                ttft_s=1.0 * slower,
                total_s=2.0 * slower,
                cached_tokens=0,
            )
            predictor.observe(seen, asyncio.get_running_loop().time())

    gateway.call(observe)


def look(gateway: Gateway) -> None:
    """Let the gateway look now whether something is to be measured."""
    assert gateway.house.measuring is not None
    gateway.call(gateway.house.measuring.fleet_changed)


class Looks:
    """Counts how often it was looked whether there is something to measure."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
        self._ended = threading.Semaphore(0)
        do_one = kind.do_one

        async def counted(job: Any) -> bool:
            done = bool(await do_one(job))
            self._ended.release()
            return done

        monkeypatch.setattr(kind, "do_one", counted)

    async def pass_by(self, count: int, after: Callable[[], None] = lambda: None) -> None:
        """Return after so many more looks, counted from before ``after`` is called."""
        while self._ended.acquire(blocking=False):
            pass
        after()
        for _ in range(count):
            assert await asyncio.to_thread(self._ended.acquire, timeout=LIMIT_S)


async def entries(client: httpx.AsyncClient) -> dict[str, Entry]:
    return {entry["id"]: entry for entry in (await client.get("/admin/fleet")).json()["deployments"]}


async def until(client: httpx.AsyncClient, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return what `GET /admin/fleet` says once it fulfils a condition; fails after the limit."""
    async with asyncio.timeout(LIMIT_S):
        while not condition(report := (await client.get("/admin/fleet")).json()):
            pass
    return dict(report)


def settled(report: dict[str, Any]) -> bool:
    return bool(report["measuring"]["settled"])


# Drift


async def test_a_deployment_whose_outcomes_leave_the_interval_is_measured_again_and_the_log_says_why(
    scripted: Scripted, gateway: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "paceline.measure")
    engine = scripted(kind="llamacpp")
    running = gateway(engines=[elsewhere(engine, slots=1)], routing=MEASURED)
    async with running.client() as client:
        await until(client, settled)
        measure(running)
        before = len(engine.requests)
        outcomes(running, slower=3.0)
        look(running)
        report = await until(client, lambda report: len(engine.requests) > before and settled(report))
    (why,) = [record.message for record in caplog.records if "is measured again" in record.message]
    assert why.startswith("a is measured again: ")
    assert "of the last" in why
    assert list(report["deployments"][0]["measured"]["ttft_s"]) == ["40"], "what the engine says now"
    assert running.house.fleet.learned.predictor.drifted(only(running).fingerprint) is None


async def test_a_deployment_whose_outcomes_stay_near_its_measurement_is_left_alone(
    scripted: Scripted, gateway: Start
) -> None:
    engine = scripted(kind="llamacpp")
    running = gateway(engines=[elsewhere(engine, slots=1)], routing=MEASURED)
    async with running.client() as client:
        await until(client, settled)
        measure(running)
        before = len(engine.requests)
        outcomes(running, slower=1.1)
        look(running)
        await until(client, settled)
    assert len(engine.requests) == before


async def test_a_later_measurement_gives_way_to_a_live_request(scripted: Scripted, gateway: Start) -> None:
    engine = scripted(kind="llamacpp")
    running = gateway(engines=[elsewhere(engine, slots=1)], routing=MEASURED)
    async with running.client() as client:
        await until(client, settled)
        measure(running)
        outcomes(running, slower=3.0)
        before = len(engine.requests)
        engine.next(stall(after=1))
        look(running)
        measuring = await engine.received(before)
        live = await client.post(CHAT, json=chat_body(max_tokens=3))
        await measuring.left.wait()
        report = await until(client, settled)
    assert live.status_code == 200
    assert report["deployments"][0]["measured"]["decode_tokens_per_s"] == 20.0, "half a measurement is none"


# The start, loading models, and a busy machine


async def test_nothing_is_measured_before_the_process_has_imported_everything(
    scripted: Scripted, gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported, import_pages = threading.Event(), gateway_app._import_pages

    def slowly(house: Any) -> Any:
        assert imported.wait(LIMIT_S)
        return import_pages(house)

    monkeypatch.setattr(gateway_app, "_import_pages", slowly)
    engine = scripted(kind="llamacpp")
    running = gateway(engines=[elsewhere(engine, slots=1)], routing=MEASURED)
    measuring = running.house.measuring
    assert measuring is not None
    look(running)
    async with running.client() as client:
        await client.post(CHAT, json=chat_body(max_tokens=3))
        state = running.call(measuring.state)
        seen = len(engine.requests)
        imported.set()
        await until(client, settled)
    assert not state["settled"]
    assert state["left"] == 1
    assert seen == 1, "the client's request only"
    assert len(engine.requests) > 4


async def test_nothing_is_measured_while_a_model_is_being_loaded_on_the_same_hardware(
    scripted: Scripted, gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(monkeypatch, gateway_speeds.Speeds)
    ready, loading = scripted(kind="vllm"), scripted(kind="llamacpp")
    up = loading.routes["GET /health"]
    loading.routes["GET /health"] = status(503, {"error": {"message": "Loading model", "code": 503}})
    running = gateway(engines=[elsewhere(ready, "a", slots=1), elsewhere(loading, "b", slots=1)], routing=MEASURED)
    async with running.client() as client:
        await client.get("/health")  # answered once everything is imported
        report = await until(client, lambda report: any(each["state"] == "loading" for each in report["deployments"]))
        for _ in range(2):
            await looks.pass_by(1, after=lambda: look(running))
        seen = len(ready.requests)
        loading.routes["GET /health"] = up
        await until(client, lambda report: settled(report) and all(e["state"] == "up" for e in report["deployments"]))
    assert seen == 0, report
    assert len(ready.requests) > 3


async def test_a_model_that_is_being_loaded_on_another_machine_holds_up_nothing(
    scripted: Scripted, gateway: Start
) -> None:
    ready, loading = scripted(kind="vllm"), scripted(kind="llamacpp")
    loading.routes["GET /health"] = status(503, {"error": {"message": "Loading model", "code": 503}})
    engines = [elsewhere(ready, "a", slots=1), elsewhere(loading, "b", slots=1, hardware={"host": "far away"})]
    running = gateway(engines=engines, routing=MEASURED)
    async with running.client() as client:
        report = await until(client, settled)
    assert {entry["id"]: entry["state"] for entry in report["deployments"]} == {"a": "up", "b": "loading"}


async def test_a_first_measurement_waits_for_idle_cores_is_made_all_the_same_and_repeated_when_they_are(
    scripted: Scripted, gateway: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "paceline.measure")
    asked, given_up, idle_at_last = threading.Event(), threading.Event(), threading.Event()

    async def wait(limit_s: float) -> bool:
        asked.set()
        await asyncio.to_thread(given_up.wait, LIMIT_S)
        return idle_at_last.is_set()

    monkeypatch.setattr(gateway_quiet, "wait_for_idle_cores", wait)
    engine = idle(scripted(kind="llamacpp"))
    running = gateway(engines=[engine_at(engine, "a", slots=1)], routing=MEASURED)
    async with running.client() as client:
        assert await asyncio.to_thread(asked.wait, LIMIT_S)
        seen = len(engine.requests)
        given_up.set()
        await until(client, settled)
        once = len(timed(engine))
        idle_at_last.set()
        look(running)
        await until(client, lambda report: len(timed(engine)) > once and settled(report))
    assert seen == 0
    assert once > 3
    assert "a is measured although this machine is busy" in caplog.text
    assert "a is measured again: it was measured while this machine was busy" in caplog.text


# Probes


async def test_a_deployment_that_nobody_uses_is_probed_and_the_probe_teaches(
    scripted: Scripted, gateway: Start
) -> None:
    engine = scripted(kind="llamacpp")
    running = gateway(engines=[elsewhere(engine, slots=1)], routing=PROBING)
    measure(running)
    look(running)
    taught_at = running.house.fleet.learned.taught_at(only(running).fingerprint)
    probe = await engine.received(0)
    async with running.client() as client:
        async with asyncio.timeout(LIMIT_S):
            while running.house.fleet.learned.taught_at(only(running).fingerprint) == taught_at:
                await client.get("/health")
        report = await until(client, lambda _: True)
    assert probe.json["max_tokens"] == gateway_probing.OUTPUT_TOKENS
    assert report["measuring"]["done"] == 0, "a probe is no measurement"


async def test_what_is_used_is_not_probed(scripted: Scripted, gateway: Start) -> None:
    used, unused = scripted(kind="llamacpp"), scripted(kind="vllm")
    running = gateway(
        engines=[elsewhere(used, "a", slots=1), elsewhere(unused, "b", slots=1, hardware={"host": "other"})],
        routing={**PROBING, "probe_after_s": 2.0},
    )
    for deployment in running.house.fleet.deployments:
        running.call(running.house.fleet.learned.measured, deployment, samples())
    async with running.client() as client:
        while not unused.requests:
            await client.post(CHAT, json=chat_body("hi", model="m@a", max_tokens=2))
    assert all(request.json["max_tokens"] == 2 for request in used.requests)


@pytest.mark.parametrize("why", ["battery", "busy", "share", "loaded elsewhere"])
async def test_no_probe_on_battery_nor_beside_others_nor_when_the_share_is_none(
    scripted: Scripted, gateway: Start, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    looks = Looks(monkeypatch, gateway_probing.Probing)
    if why == "battery":
        monkeypatch.setattr(gateway_probing, "on_battery", lambda: True)
    engine = scripted(kind="llamacpp")
    routing = {**PROBING, "probe_share": 0.0} if why == "share" else PROBING
    running = gateway(engines=[elsewhere(engine, slots=1)], routing=routing)
    fleet = running.house.fleet
    if why == "busy":
        running.call(lambda: setattr(fleet.engines[0], "foreign_running", 1))
    elif why == "loaded elsewhere":
        running.call(lambda: setattr(fleet.engines[0], "_resident", frozenset()))
    async with running.client() as client:
        await client.get("/health")  # answered once everything is imported
    measure(running)
    await looks.pass_by(4)  # one each 0.2 seconds
    assert engine.requests == []


async def test_a_probe_gives_way_to_a_live_request(scripted: Scripted, gateway: Start) -> None:
    engine = scripted(kind="llamacpp")
    running = gateway(engines=[elsewhere(engine, slots=1)], routing=PROBING)
    measure(running)
    engine.next(stall(after=1))
    look(running)
    probe = await engine.received(0)
    async with running.client() as client:
        live = await client.post(CHAT, json=chat_body(max_tokens=3))
        await probe.left.wait()
    assert live.status_code == 200


# Fingerprints


async def test_records_of_another_version_stop_counting_at_once_in_a_running_gateway(
    scripted: Scripted, gateway: Start
) -> None:
    engine = scripted(kind="llamacpp")
    running = gateway(engines=[elsewhere(engine, slots=1)])
    measure(running)
    prompt = "a long prompt " * 100
    async with running.client() as client:
        sent = (await client.post(CHAT, json=chat_body(prompt, max_tokens=2))).request.content
        prefix = read_request(Operation.CHAT, sent).prefix
        held = running.house.fleet.learned.prefixes.holders(prefix, 100)
        question = {"model": "m", "prompt": prompt}
        known = (await client.post("/admin/explain", json=question)).json()
        before = (await entries(client))["a"]
        await upgrade(engine, running)
        report = await until(client, lambda report: report["deployments"][0]["engine_version"] == "b20000-feed")
        after = report["deployments"][0]
        unknown = (await client.post("/admin/explain", json=question)).json()
    assert before["state"] == "up"
    assert before["fingerprint"] != after["fingerprint"]
    assert (after["state"], after["measured"]) == ("unmeasured", None)
    assert "total_s" in known["candidates"][0]
    assert "total_s" not in unknown["candidates"][0]
    assert list(held) == ["a"]
    assert running.house.fleet.learned.prefixes.holders(prefix, 100) == {}, "what was started anew holds nothing"


async def test_another_version_is_measured_anew_and_the_old_ones_records_come_back_with_it(
    scripted: Scripted, gateway: Start
) -> None:
    engine = scripted(kind="llamacpp")
    old = engine.routes["GET /props"]
    running = gateway(engines=[elsewhere(engine, slots=1)], routing=MEASURED)
    async with running.client() as client:
        await until(client, settled)
        first = len(timed(engine))
        await upgrade(engine, running)
        await until(client, lambda report: _version(report) == "b20000-feed" and settled(report))
        second = len(timed(engine))
        engine.routes["GET /props"] = old
        running.call(running.house.fleet.engines[0].look_again)
        report = await until(client, lambda report: _version(report) != "b20000-feed" and settled(report))
    assert second > first
    assert len(timed(engine)) == second
    assert report["deployments"][0]["state"] == "up"


def timed(engine: ScriptedEngine) -> list[Received]:
    """The requests of speed measurements."""
    return [request for request in engine.requests if request.json["max_tokens"] == OUTPUT_TOKENS]


def _version(report: dict[str, Any]) -> str:
    return str(report["deployments"][0].get("engine_version"))


async def upgrade(engine: ScriptedEngine, running: Gateway) -> None:
    """Another build of the engine answers from now on."""
    props = {
        "default_generation_settings": {"n_ctx": 2048, "params": {}},
        "total_slots": 2,
        "model_ftype": "Q4_K - Medium",
        "model_path": "/models/engine-model.gguf",
        "modalities": {},
        "chat_template": "{{ messages }}",
        "build_info": "b20000-feed",
    }
    engine.routes["GET /props"] = whole(props)
    running.call(running.house.fleet.engines[0].look_again)

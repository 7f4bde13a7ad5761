"""Field lessons 21 to 24, running it: memory, connections, secrets, open addresses. `test_front_door.py` has more."""

from __future__ import annotations

import asyncio
import json
import logging
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from engines.scripted import Exchange as Received
from engines.scripted import ScriptedEngine
from engines.scripts import chat, hang, status
from engines.signals import Gate
from fleets import samples
from gateways import LIMIT_S, Gateway, chat_body, engine_at
from shell import Running, Shell

from adapters.base import Answer, EngineDescription, ModelDescription, Outcome
from adapters.errors import Broken, Busy
from gateway.exchange import Exchange, Wishes
from gateway.house import House
from gateway.incoming import read_request
from gateway.keys import hash_key, new_key
from policies.types import Capability, Operation, Precision

Scripted = Callable[..., ScriptedEngine]
Start = Callable[..., Gateway]

CHAT_PATH = "/v1/chat/completions"

# Lesson 21: every store in memory is bounded


class Finished(Answer):
    """An answer that has come whole, of an engine that counted so many tokens."""

    streamed = True

    def __init__(self, prompt_tokens: int, output_tokens: int) -> None:
        self.outcome = Outcome(prompt_tokens=prompt_tokens, output_tokens=output_tokens, finish_reason="stop")
        self.outcome.first_token_at = self.outcome.last_token_at = asyncio.get_running_loop().time()

    async def read(self) -> bytes | None:
        return None

    def close(self) -> None: ...


def largest_store(root: object) -> tuple[int, str]:
    """Return the size and the place of the largest container that can be reached from an object."""
    largest, seen = (0, ""), set[int]()
    waiting: list[tuple[str, object]] = [("house", root)]
    while waiting:
        place, value = waiting.pop()
        if id(value) in seen or isinstance(value, str | bytes | type | types.ModuleType | types.FunctionType):
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            inside = [(f"{place}[]", each) for pair in value.items() for each in pair]
        elif isinstance(value, list | tuple | set | frozenset | deque):
            inside = [(f"{place}[]", each) for each in value]
        else:
            slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
            names = [*getattr(value, "__dict__", {}), *slots]
            inside = [(f"{place}.{name}", getattr(value, name)) for name in names if hasattr(value, name)]
            waiting += inside
            continue
        largest = max(largest, (len(value), place))
        waiting += inside
    return largest


async def until(condition: Callable[[], bool]) -> None:
    """Return once a condition holds; fails after the limit."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - it is about a value that nobody announces
            await asyncio.sleep(0.001)


async def serve_one(house: House, model: str, text: str, caller: str, ending: Exception | None = None) -> None:
    """Take a request all the way through, but for the sockets."""
    fleet = house.fleet
    incoming = read_request(Operation.CHAT, json.dumps(chat_body(text, model=model)).encode())
    exchange = Exchange("id", 0.0, incoming, Wishes(caller))
    async with house.admission.admitted(caller):
        exchange.facts = fleet.facts(incoming, exchange.wishes)
        exchange.decision = fleet.route(exchange.facts)
        if exchange.decision.chosen is None:
            return
        attempt = fleet.begin(exchange, exchange.decision.chosen)
        attempt._answer = Finished(len(text) // 4, 20)
        if isinstance(ending, Busy | Broken):
            attempt.fail(ending)
        else:
            attempt.done()


def test_ten_thousand_strangers_leave_no_store_that_grows_with_them(
    scripted: Scripted, gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers = 10_000
    monkeypatch.setattr("gateway.learned.LESSONS_PER_S", 1e6)  # every one of them teaches
    running = gateway(engines=[engine_at(scripted(kind="llamacpp"), "a")])
    house = running.house
    running.call(house.fleet.learned.measured, house.fleet.deployments[0], samples())

    async def come_and_go() -> None:
        for i in range(strangers):
            await serve_one(house, "m", f"{i} word " * 80, f"caller {i}")
            await serve_one(house, f"stranger {i}", "hi", f"caller {i}")
            await serve_one(house, f"m@selector {i}", "hi", "")

    running.run(come_and_go())
    size, place = running.call(largest_store, house)
    assert 1000 < size < strangers, f"{place}: nothing that is learned is kept, or all of it"


def test_a_flood_of_answers_teaches_in_measure(
    scripted: Scripted, gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.learned.LESSONS_PER_S", 8.0)
    running = gateway(engines=[engine_at(scripted(kind="llamacpp"), "a")])
    house = running.house

    async def flood() -> float:
        clock = asyncio.get_running_loop().time
        begun = clock()
        for i in range(300):
            await serve_one(house, "m", f"{i} word " * 80, f"caller {i}")
        return clock() - begun

    took_s = running.run(flood())
    callers = running.call(len, house.fleet.learned.output) - 1  # beside the mean of all
    assert 16 <= callers <= 16 + 8 * took_s + 1
    prefix = read_request(Operation.CHAT, json.dumps(chat_body("299 word " * 80)).encode()).prefix
    assert running.call(house.fleet.learned.prefixes.cached_tokens, "a", prefix, 1), "a prefix is remembered always"


def test_models_that_come_and_go_leave_no_store_that_grows_with_them(
    scripted: Scripted, gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = 300
    for bound in ("predict._MOST_PROFILES", "tokens._MOST_MODELS", "tokens._MOST_CALLERS", "turns._MOST_CALLERS"):
        monkeypatch.setattr(f"policies.{bound}", 100)
    monkeypatch.setattr("gateway.learned._MOST_BLOCKS", 100)
    running = gateway(engines=[engine_at(scripted(kind="openai"), "a")])
    house = running.house
    assert house.measuring is not None
    (engine,) = house.fleet.engines
    hardware = house.fleet.deployments[0].hardware

    async def come_and_go() -> None:
        for i in range(models):
            model = ModelDescription(f"m{i}", Precision.FP16, context=4096, capabilities=frozenset({Capability.CHAT}))
            engine._learn(EngineDescription("ollama", "Ollama", "1", (model,)), hardware)
            house.fleet.learned.measured(house.fleet.deployments[0], samples())
            await serve_one(house, f"m{i}", f"{i} word " * 80, "")
            await serve_one(house, f"m{i}", "hi", "", Busy("busy"))
            await serve_one(house, f"m{i}", "hi", "", Broken("broken"))
            await until(lambda: house.measuring.state()["settled"])  # it has looked for records of this one

    running.run(come_and_go())
    size, place = running.call(largest_store, house)
    assert 100 <= size < models, place


# Lesson 22: limits with a clear answer, and a thousand connections


async def test_the_queue_has_a_bound_and_a_time_limit_and_both_say_when_to_come_back(
    scripted: Scripted, gateway: Start
) -> None:
    engine = scripted(kind="vllm")
    engine.always(hang())
    running = gateway(
        engines=[engine_at(engine, "a")], limits={"max_concurrent": 2, "queue": 1, "queue_timeout_s": 0.3}
    )
    async with running.client() as client:
        held = [asyncio.create_task(client.post(CHAT_PATH, json=chat_body())) for _ in range(2)]
        await engine.received(1)
        others = await asyncio.gather(*(client.post(CHAT_PATH, json=chat_body()) for _ in range(2)))
        for call in held:
            call.cancel()
        await asyncio.gather(*held, return_exceptions=True)
    assert [other.status_code for other in others] == [429, 429]
    for other in others:
        assert int(other.headers["retry-after"]) >= 1
        assert other.json()["error"]["code"] == "too_many_requests"
    messages = sorted(other.json()["error"]["message"] for other in others)
    assert "none became free in 0.3 s" in messages[0]
    assert "the queue is full" in messages[1]
    assert len(engine.requests) == 2


async def test_who_leaves_the_queue_makes_room_in_it(scripted: Scripted, gateway: Start) -> None:
    gate = Gate()
    engine = scripted(kind="vllm")
    engine.always(chat(gate=gate))
    running = gateway(engines=[engine_at(engine, "a")], limits={"max_concurrent": 1, "queue": 1})

    async def until_waiting(count: int) -> None:
        await until(lambda: running.call(lambda: running.house.admission.waiting) == count)

    async with running.client() as client:
        first = asyncio.create_task(client.post(CHAT_PATH, json=chat_body()))
        await engine.received(0)
        leaves = asyncio.create_task(client.post(CHAT_PATH, json=chat_body()))
        await until_waiting(1)
        leaves.cancel()
        await until_waiting(0)
        stays = asyncio.create_task(client.post(CHAT_PATH, json=chat_body()))
        await until_waiting(1)
        gate.open()
        answers = await asyncio.gather(first, stays)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert len(engine.requests) == 2, "who left was never sent on"


async def test_a_thousand_connections_at_once_are_all_served(shell: Shell, engine: ScriptedEngine) -> None:
    connections = 1000
    gate = Gate()
    engine.always(chat(gate=gate))
    shell.configure(f"engines: [{{name: near, url: '{engine.url}'}}]\nrouting: {{measure_at_start: false}}\n")
    running = shell.up()
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=running.url, timeout=60, limits=limits) as client:
        body = chat_body(model="tiny", stream=True)
        calls = [asyncio.create_task(client.post(CHAT_PATH, json=body)) for _ in range(connections)]
        await engine.received(99, limit_s=60)
        gate.open()
        answers = await asyncio.gather(*calls)
        after = await client.get("/ready")
    assert {answer.status_code for answer in answers} == {200}
    assert all("[DONE]" in answer.text for answer in answers)
    assert after.status_code == 200
    assert running.stop() == 0
    assert "Traceback" not in running.log.read_text()


# Lesson 23: no secret in any output

CLIENT_KEY = new_key()
ENGINE_KEY = "engine-key-hunter2-hunter2"
PASSWORD = "correct-horse-battery"
SECRETS = (CLIENT_KEY, ENGINE_KEY, PASSWORD)


def says_the_key_back(code: int) -> Any:
    """An engine that puts the headers which it was sent into its error, as some do."""

    async def script(exchange: Received) -> None:
        told = f"refused, {exchange.request.headers.get('authorization')}, http://user:{PASSWORD}@inner:1/x"
        await exchange.json({"error": {"message": told, "type": told, "code": told, "param": told}}, code)

    return script


async def _dies_with_the_key(exchange: Received) -> None:
    await exchange.head(headers={"content-type": "text/event-stream"})
    told = json.dumps({"error": {"message": f"lost {exchange.request.headers.get('authorization')}"}})
    await exchange.data(f"data: {told}\n\n".encode())
    await exchange.end()


@pytest.fixture
def secretive(shell: Shell, scripted: Scripted) -> tuple[Running, ScriptedEngine]:
    """A gateway with keys everywhere, everything logged, and engines of which one is never there."""
    engine = scripted(kind="vllm")
    shell.environment["ENGINE_KEY_OF_B"] = ENGINE_KEY
    shell.configure(
        f"""
        auth: {{keys: [{{name: alice, hash: '{hash_key(CLIENT_KEY)}', admin: true}}]}}
        log: {{level: debug, access: true}}
        routing: {{measure_at_start: false}}
        engines:
        - {{name: a, url: '{engine.url}', kind: vllm, api_key: {ENGINE_KEY}, models: {{{engine.model}: m}}}}
        - {{name: b, url: 'http://127.0.0.1:1', api_key_env: ENGINE_KEY_OF_B}}
        """
    )
    return shell.up(), engine


async def test_no_secret_is_in_any_output_however_the_engine_fails(
    secretive: tuple[Running, ScriptedEngine], shell: Shell
) -> None:
    running, engine = secretive
    outputs: list[str] = [json.dumps(running.said)]

    def note(answer: httpx.Response) -> None:
        outputs.append(f"{answer.status_code} {answer.headers!r} {answer.text}")

    async with httpx.AsyncClient(base_url=running.url, timeout=LIMIT_S) as client:
        right = {"authorization": f"Bearer {CLIENT_KEY}", "x-api-key": CLIENT_KEY}
        for code in (400, 401, 403, 404, 422, 429, 500, 503):
            engine.next(says_the_key_back(code))
            note(await client.post(CHAT_PATH, json=chat_body(stream=code % 2 == 0), headers=right))
        for script in (_dies_with_the_key, status(500)):
            engine.next(script)
            note(await client.post(CHAT_PATH, json=chat_body(stream=True), headers=right))
        for path in ("/v1/models", "/v1/models/m", "/admin/fleet", "/ready", "/health", "/openapi.json", "/nothing"):
            note(await client.get(path, headers=right))
        wrong = {"authorization": f"Bearer {CLIENT_KEY}x"}
        note(await client.get("/v1/models", headers=wrong))
        odd = {**chat_body(), "model": f"{CLIENT_KEY}", "stream": ENGINE_KEY}
        note(await client.post(CHAT_PATH, json=odd, headers=right))
    assert engine.requests[0].headers["authorization"] == f"Bearer {ENGINE_KEY}", "the engine was told its key"
    assert running.stop() == 0
    log = running.log.read_text()
    for words in (["doctor", "--json"], ["models", "--json"], ["doctor"]):
        done = await asyncio.to_thread(shell.run, *words)
        outputs += [done.stdout, done.stderr]
    assert "caller=alice" in log
    assert any("refused" in output for output in outputs), "what the engine said is told, without the key"
    for secret in SECRETS:
        assert secret not in log
        for output in outputs:
            assert secret not in output


def test_a_password_in_an_address_is_refused_without_being_repeated(shell: Shell) -> None:
    shell.configure(f"engines: [{{name: a, url: 'http://user:{PASSWORD}@127.0.0.1:1'}}]")
    for words in (["up"], ["doctor", "--json"], ["models"]):
        done = shell.run(*words)
        assert done.returncode == 1
        assert "api_key_env" in done.stdout + done.stderr
        assert PASSWORD not in done.stdout + done.stderr


async def test_what_a_client_writes_is_in_no_log(
    scripted: Scripted, gateway: Start, caplog: pytest.LogCaptureFixture
) -> None:
    engine = scripted(kind="vllm")
    engine.next(status(500), status(400), chat(["the", " answer"]))
    running = gateway(engines=[engine_at(engine, "a")], log={"access": True})
    with caplog.at_level(logging.DEBUG):
        async with running.client() as client:
            for _ in range(3):
                await client.post(CHAT_PATH, json=chat_body("my private question"))
        running.stop()  # a client has its answer a moment before its line is written
    assert len([record for record in caplog.records if record.name == "paceline.access"]) == 3
    assert "private question" not in caplog.text
    assert "the answer" not in caplog.text


# Lesson 24: an open address needs keys


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_open_address_without_keys_is_refused_with_both_ways_out_and_with_keys_it_serves(
    shell: Shell, engine: ScriptedEngine, host: str
) -> None:
    engines = f"engines: [{{name: near, url: '{engine.url}'}}]\nrouting: {{measure_at_start: false}}\n"
    shell.configure(f"server: {{host: '{host}'}}\n{engines}")
    refused = shell.run("up", "--port", "0")
    assert refused.returncode == 1
    assert "paceline key" in refused.stderr
    assert "127.0.0.1" in refused.stderr
    key = new_key()
    shell.configure(f"server: {{host: '{host}'}}\nauth: {{keys: [{{name: a, hash: '{hash_key(key)}'}}]}}\n{engines}")
    running = shell.up()
    assert running.get("/v1/models", authorization=f"Bearer {key}")["data"]
    with httpx.Client() as client:
        assert client.get(running.url + "/v1/models").status_code == 401

"""Who may come in and how many at once, at a real `paceline up` over a real socket."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
from engines.scripted import ScriptedEngine
from engines.scripts import chat
from engines.signals import Gate
from shell import LIMIT_S, Running, Shell

from gateway.keys import hash_key, new_key

ALICE, BOB = new_key(), new_key()
CHAT_PATH = "/v1/chat/completions"
CHAT = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}).encode()


@dataclass
class Reply:
    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def error(self) -> dict[str, Any]:
        assert set(self.body["error"]) == {"message", "type", "param", "code"}
        return dict(self.body["error"])


def ask(gateway: Running, path: str = CHAT_PATH, body: bytes | None = CHAT, **headers: str) -> Reply:
    connection = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=LIMIT_S)
    try:
        connection.request("GET" if body is None else "POST", path, body, headers)
        response = connection.getresponse()
        data = response.read()
        return Reply(
            response.status, {k.lower(): v for k, v in response.getheaders()}, json.loads(data) if data else None
        )
    finally:
        connection.close()


def configuration(engine: ScriptedEngine, more: str = "") -> str:
    return f"engines: [{{name: near, url: '{engine.url}'}}]\nrouting: {{measure_at_start: false}}\n{more}"


def start(shell: Shell, engine: ScriptedEngine, more: str = "") -> Running:
    shell.configure(configuration(engine, more))
    return shell.up()


@dataclass
class House:
    """One gateway for several tests, and the engine behind it."""

    gateway: Running
    engine: ScriptedEngine


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], House]]:
    """Starts gateways that end with the module."""
    with ExitStack() as stack:

        def start_one(more: str) -> House:
            shell = Shell(tmp_path_factory.mktemp("shell"))
            stack.callback(shell.close)
            engine = stack.enter_context(ScriptedEngine(kind="llamacpp", model="tiny.gguf"))
            return House(start(shell, engine, more), engine)

        yield start_one


@pytest.fixture(scope="module")
def keyed(opened: Callable[[str], House]) -> House:
    """A gateway with two keys, one request at once for each."""
    alice, bob = (f"{{name: {name}, hash: '{hash_key(key)}'" for name, key in (("alice", ALICE), ("bob", BOB)))
    return opened(f"auth: {{keys: [{alice}, admin: true}}, {bob}}}]}}\nlimits: {{per_key: 1, queue: 0}}")


@pytest.fixture(scope="module")
def keyless(opened: Callable[[str], House]) -> House:
    """A gateway without keys that takes small bodies only."""
    return opened("server: {max_body_bytes: 2KiB}")


def test_with_keys_nothing_but_health_is_told_without_one(keyed: House) -> None:
    gateway = keyed.gateway
    assert ask(gateway, "/health", None).status == 200
    for path, body in (("/v1/models", None), ("/v1/models/tiny", None), ("/admin/fleet", None), (CHAT_PATH, CHAT)):
        refused = ask(gateway, path, body)
        assert (refused.status, refused.error["code"]) == (401, "invalid_api_key"), path
        assert refused.headers["www-authenticate"] == "Bearer"
    assert ask(gateway, authorization=f"Bearer {ALICE[:-1]}").status == 401


def test_a_key_opens_in_both_spellings_and_only_an_admins_opens_the_fleet(keyed: House) -> None:
    gateway = keyed.gateway
    assert ask(gateway, authorization=f"Bearer {BOB}").status == 200
    assert ask(gateway, **{"x-api-key": BOB}).status == 200
    assert ask(gateway, "/admin/fleet", None, **{"x-api-key": ALICE}).status == 200
    refused = ask(gateway, "/admin/fleet", None, **{"x-api-key": BOB})
    assert (refused.status, refused.error["code"]) == (403, "admin_only")


def test_no_key_of_a_client_reaches_an_engine(keyed: House) -> None:
    assert ask(keyed.gateway, authorization=f"Bearer {BOB}", **{"x-api-key": BOB}).status == 200
    assert "chat" in keyed.engine.requests[-1].path
    assert BOB not in repr(keyed.engine.requests[-1].headers)


def test_one_keys_limit_does_not_hold_up_another_key(keyed: House) -> None:
    gate, before = Gate(), len(keyed.engine.requests)
    keyed.engine.next(chat(gate=gate))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, keyed.gateway, authorization=f"Bearer {ALICE}")
        keyed.engine.received_blocking(before)
        refused = ask(keyed.gateway, authorization=f"Bearer {ALICE}")
        other = ask(keyed.gateway, authorization=f"Bearer {BOB}")
        gate.open()
        first.result(LIMIT_S)
    assert refused.status == 429
    assert "'alice'" in refused.error["message"]
    assert other.status == 200


@pytest.mark.parametrize(
    "headers",
    [{"host": "evil.example"}, {"origin": "https://evil.example"}, {"origin": "null"}],
    ids=["another name", "another page", "no page"],
)
def test_without_keys_a_web_page_cannot_use_it_by_way_of_the_browser(keyless: House, headers: dict[str, str]) -> None:
    for path, body in (("/v1/models", None), ("/admin/fleet", None), (CHAT_PATH, CHAT)):
        refused = ask(keyless.gateway, path, body, **headers)
        assert refused.status == 403, path
        assert "access-control-allow-origin" not in refused.headers


def test_a_body_past_the_limit_is_413_and_broken_json_says_where(keyless: House) -> None:
    assert ask(keyless.gateway, body=b" " * 4096).status == 413
    broken = ask(keyless.gateway, body=b'{"model": "tiny", oops}')
    assert broken.status == 400
    assert "byte" in broken.error["message"]


def test_an_unknown_model_is_404_with_near_names(keyless: House) -> None:
    reply = ask(keyless.gateway, body=CHAT.replace(b"tiny", b"tinny"))
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    assert "'tiny'" in reply.error["message"]


def test_a_page_that_is_allowed_may_call_and_read(shell: Shell, engine: ScriptedEngine) -> None:
    gateway = start(shell, engine, "server: {cors_origins: ['https://chat.example']}")
    reply = ask(gateway, origin="https://chat.example")
    assert reply.status == 200
    assert reply.headers["access-control-allow-origin"] == "https://chat.example"
    assert ask(gateway, origin="https://evil.example").status == 403


def test_past_the_limit_it_is_429_with_a_time_and_the_place_is_free_again_afterwards(
    shell: Shell, engine: ScriptedEngine
) -> None:
    gate = Gate()
    engine.always(chat(gate=gate))
    gateway = start(shell, engine, "limits: {max_concurrent: 1, queue: 0}")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, gateway)
        engine.received_blocking(0)
        refused = ask(gateway)
        gate.open()
        assert first.result(LIMIT_S).status == 200
    assert (refused.status, refused.error["type"]) == (429, "rate_limit_error")
    assert int(refused.headers["retry-after"]) >= 1
    assert ask(gateway).status == 200


def test_whoever_waits_gets_a_place_when_one_is_free(shell: Shell, engine: ScriptedEngine) -> None:
    gate = Gate()
    engine.always(chat(gate=gate))
    gateway = start(shell, engine, "limits: {max_concurrent: 1, queue: 8}")
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(ask, gateway) for _ in range(4)]
        engine.received_blocking(0)
        gate.open()
        assert [reply.result(LIMIT_S).status for reply in waiting] == [200] * 4


def test_hundreds_of_clients_at_once_are_all_answered(shell: Shell, engine: ScriptedEngine) -> None:
    gateway = start(shell, engine, "limits: {max_concurrent: 16, queue: 64}")
    barrier = threading.Barrier(200)

    def call() -> int:
        barrier.wait(LIMIT_S)
        return ask(gateway).status

    with ThreadPoolExecutor(200) as pool:
        statuses = {future.result(LIMIT_S) for future in [pool.submit(call) for _ in range(200)]}
    assert statuses <= {200, 429}
    assert 200 in statuses

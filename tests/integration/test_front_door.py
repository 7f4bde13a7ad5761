"""Who may come in and how many at once, at a real `paceline up` over a real socket."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
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


def ask(gateway: Running, path: str = "/v1/chat/completions", body: bytes | None = CHAT, **headers: str) -> Reply:
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


def start(shell: Shell, engine: ScriptedEngine, more: str = "") -> Running:
    shell.configure(f"engines: [{{name: near, url: '{engine.url}'}}]\nrouting: {{measure_at_start: false}}\n{more}")
    return shell.up()


def with_keys(*, more: str = "") -> str:
    return (
        f"auth:\n  keys:\n  - {{name: alice, hash: '{hash_key(ALICE)}', admin: true}}\n"
        f"  - {{name: bob, hash: '{hash_key(BOB)}'}}\n{more}"
    )


def test_with_keys_nothing_but_health_is_told_without_one(shell: Shell, engine: ScriptedEngine) -> None:
    gateway = start(shell, engine, with_keys())
    assert ask(gateway, "/health", None).status == 200
    for path, body in (
        ("/v1/models", None),
        ("/v1/models/tiny", None),
        ("/admin/fleet", None),
        ("/v1/chat/completions", CHAT),
    ):
        refused = ask(gateway, path, body)
        assert (refused.status, refused.error["code"]) == (401, "invalid_api_key"), path
        assert refused.headers["www-authenticate"] == "Bearer"
    assert ask(gateway, authorization=f"Bearer {ALICE[:-1]}").status == 401


def test_a_key_opens_in_both_spellings_and_only_an_admins_opens_the_fleet(shell: Shell, engine: ScriptedEngine) -> None:
    gateway = start(shell, engine, with_keys())
    assert ask(gateway, authorization=f"Bearer {BOB}").status == 200
    assert ask(gateway, **{"x-api-key": BOB}).status == 200
    assert ask(gateway, "/admin/fleet", None, **{"x-api-key": ALICE}).status == 200
    refused = ask(gateway, "/admin/fleet", None, **{"x-api-key": BOB})
    assert (refused.status, refused.error["code"]) == (403, "admin_only")


def test_no_key_of_a_client_reaches_an_engine(shell: Shell, engine: ScriptedEngine) -> None:
    gateway = start(shell, engine, with_keys())
    ask(gateway, authorization=f"Bearer {BOB}", **{"x-api-key": BOB})
    (request,) = [request for request in engine.requests if "chat" in request.path]
    assert BOB not in repr(request.headers)


@pytest.mark.parametrize(
    "headers",
    [{"host": "evil.example"}, {"origin": "https://evil.example"}, {"origin": "null"}],
    ids=["another name", "another page", "no page"],
)
def test_without_keys_a_web_page_cannot_use_it_by_way_of_the_browser(
    shell: Shell, engine: ScriptedEngine, headers: dict[str, str]
) -> None:
    gateway = start(shell, engine)
    for path, body in (("/v1/models", None), ("/admin/fleet", None), ("/v1/chat/completions", CHAT)):
        refused = ask(gateway, path, body, **headers)
        assert refused.status == 403, path
        assert "access-control-allow-origin" not in refused.headers


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


def test_one_keys_limit_does_not_hold_up_another_key(shell: Shell, engine: ScriptedEngine) -> None:
    gate = Gate()
    engine.next(chat(gate=gate))
    gateway = start(shell, engine, with_keys(more="limits: {per_key: 1, queue: 0}"))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, gateway, authorization=f"Bearer {ALICE}")
        engine.received_blocking(0)
        refused = ask(gateway, authorization=f"Bearer {ALICE}")
        other = ask(gateway, authorization=f"Bearer {BOB}")
        gate.open()
        first.result(LIMIT_S)
    assert refused.status == 429
    assert "'alice'" in refused.error["message"]
    assert other.status == 200


def test_whoever_waits_gets_a_place_when_one_is_free(shell: Shell, engine: ScriptedEngine) -> None:
    gate = Gate()
    engine.always(chat(gate=gate))
    gateway = start(shell, engine, "limits: {max_concurrent: 1, queue: 8}")
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(ask, gateway) for _ in range(4)]
        engine.received_blocking(0)
        gate.open()
        assert [reply.result(LIMIT_S).status for reply in waiting] == [200] * 4


def test_a_body_past_the_limit_is_413_and_broken_json_says_where(shell: Shell, engine: ScriptedEngine) -> None:
    gateway = start(shell, engine, "server: {max_body_bytes: 2KiB}")
    assert ask(gateway, body=b" " * 4096).status == 413
    broken = ask(gateway, body=b'{"model": "tiny", oops}')
    assert broken.status == 400
    assert "byte" in broken.error["message"]


def test_an_unknown_model_is_404_with_near_names(shell: Shell, engine: ScriptedEngine) -> None:
    gateway = start(shell, engine)
    reply = ask(gateway, body=CHAT.replace(b"tiny", b"tinny"))
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    assert "'tiny'" in reply.error["message"]


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

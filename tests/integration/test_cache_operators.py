"""What operators see and do: `paceline cache`, `/admin/cache`, `paceline doctor`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from engines.scripted import ScriptedEngine
from gateways import Gateway, chat_body, engine_at
from shell import Shell
from valkeys import Valkey

StartGateway = Callable[..., Gateway]
StartValkey = Callable[..., Valkey]


@pytest.fixture
def cached(gateway: StartGateway, scripted: Callable[..., ScriptedEngine], valkey: StartValkey) -> Gateway:
    cache = {"url": valkey().url, "lookup_ms": 2000}
    made = gateway(engines=[engine_at(scripted(kind="llamacpp"), "a")], cache=cache)
    made.wait_until_reached()
    return made


def ask(gateway: Gateway, text: str = "hi") -> httpx.Response:
    response = httpx.post(f"{gateway.url}/v1/chat/completions", json=chat_body(text), timeout=20)
    assert response.status_code == 200
    return response


@pytest.fixture
def cli(shell: Shell, cached: Gateway) -> Callable[..., Any]:
    """Runs `paceline cache …` against the gateway; returns its JSON."""

    def run(*words: str, status: int = 0) -> Any:
        done = shell.run("cache", *words, "--url", cached.url, "--json")
        assert done.returncode == status, done.stdout + done.stderr
        return json.loads(done.stdout)

    return run


def test_stats_say_what_was_saved(cached: Gateway, cli: Callable[..., Any], shell: Shell) -> None:
    for _ in range(4):
        ask(cached)
    report = cli("stats")
    counts = report["models"]["m"]
    assert (counts["hits"], counts["misses"], counts["stored"]) == (3, 1, 1)
    assert counts["saved_prompt_tokens"] == 15
    assert counts["saved_s"] > 0
    assert report["total"]["hits"] == 3
    assert report["memory"]["entries"] == 1
    told = shell.run("cache", "--url", cached.url)
    assert told.returncode == 0
    assert "75 %" in told.stdout


def test_inspect_shows_an_entry_by_the_beginning_of_its_key(cached: Gateway, cli: Callable[..., Any]) -> None:
    key = ask(cached).headers["x-paceline-cache-key"]
    [entry] = cli("inspect", key)["entries"]
    assert entry["key"].startswith(key)
    assert (entry["model"], entry["deployment"], entry["finish_reason"]) == ("m", "a", "stop")
    assert "Hel" in entry["body"]
    assert cli("inspect", "0123456789abcdef")["entries"] == []
    assert "no key" in cli("inspect", "hello", status=1)["error"]["message"]


def test_clear_by_model_and_age(cached: Gateway, cli: Callable[..., Any]) -> None:
    for text in ("one", "two"):
        ask(cached, text)
    assert cli("clear", "--model", "m", "--older-than", "1h")["deleted"] == 0
    assert cli("clear", "--model", "other")["deleted"] == 0
    assert cli("clear", "--model", "m")["deleted"] == 2
    assert ask(cached, "one").headers["x-paceline-cache"] == "miss"
    assert "say what" in cli("clear", status=1)["error"]["message"]
    assert cli("clear", "--all")["deleted"] >= 1


def test_warm_sends_a_files_requests(cached: Gateway, cli: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    batch = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": chat_body("two")}
    file.write_text("\n".join(json.dumps(each) for each in (chat_body("one"), batch)) + "\n\n")
    assert cli("warm", str(file))["outcomes"] == {"miss": 2}
    assert cli("warm", str(file), "--at-once", "2")["outcomes"] == {"hit": 2}
    assert ask(cached, "two").headers["x-paceline-cache"] == "hit"
    file.write_text(json.dumps(chat_body("x", model="nobody")))
    failed = cli("warm", str(file), status=1)
    assert failed["failures"][0]["line"] == 1
    file.write_text("not json")
    assert "line 1" in cli("warm", str(file), status=1)["error"]["message"]


def test_only_admins_see_it(gateway: StartGateway, scripted: Callable[..., ScriptedEngine]) -> None:
    keys = [{"name": "ann", "hash": "sha256:" + hashlib.sha256(b"a" * 20).hexdigest()}]
    guarded = gateway(engines=[engine_at(scripted(), "a")], cache={"mode": "auto"}, auth={"keys": keys})
    for method, path in (("GET", "/admin/cache"), ("POST", "/admin/cache/clear"), ("GET", "/admin/cache/entries/0123")):
        for headers, status in (({}, 401), ({"x-api-key": "a" * 20}, 403)):
            response = httpx.request(method, guarded.url + path, json={}, headers=headers, timeout=20)
            assert response.status_code == status, (path, response.text)


def test_one_that_is_off_says_so(gateway: StartGateway, scripted: Callable[..., ScriptedEngine]) -> None:
    off = gateway(engines=[engine_at(scripted(), "a")])
    assert httpx.get(f"{off.url}/admin/cache", timeout=20).json()["error"]["code"] == "cache_off"


class TestDoctor:
    def findings(self, shell: Shell, cache: Any) -> list[tuple[str, str]]:
        shell.configure(json.dumps({"cache": cache, "discovery": {"enabled": False}, "server": {"port": 0}}))
        shell.environment.pop("PACELINE_CACHE__MODE", None)
        done = shell.run("doctor", "--json")
        return [
            (each["level"], each["what"]) for each in json.loads(done.stdout)["findings"] if each["check"] == "cache"
        ]

    def test_a_server_without_a_limit_one_that_is_full_and_one_that_is_away(
        self, shell: Shell, valkey: StartValkey
    ) -> None:
        server = valkey(tcp=True)
        found = self.findings(shell, server.url)
        assert ("note", "the server has no memory limit") in found
        assert any("Valkey" in what or "Redis" in what for level, what in found if level == "ok")
        with server.client() as client:
            client.config_set("maxmemory", "100mb")
        assert any(level == "warn" and "noeviction" in what for level, what in self.findings(shell, server.url))
        server.kill()
        [(level, what)] = self.findings(shell, server.url)
        assert level == "warn"
        assert "cannot be used" in what

    @pytest.mark.parametrize("persistent", [False, True])
    def test_whether_it_keeps_what_it_has_and_how_long_a_question_takes(
        self, shell: Shell, valkey: StartValkey, persistent: bool
    ) -> None:
        server = valkey(tcp=True, persistent=persistent)
        found = self.findings(shell, server.url)
        forgets = ("note", "the server keeps nothing on disk: answers are gone when it restarts")
        assert (forgets in found) is not persistent
        assert any(level == "ok" and what.startswith("a question takes ") for level, what in found)

    def test_one_that_does_not_say_what_it_keeps(self, shell: Shell, valkey: StartValkey) -> None:
        server = valkey(tcp=True)
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "default", "-config")
        found = self.findings(shell, server.url)
        assert found
        assert not any("on disk" in what for _, what in found)

    def test_in_memory_embedded_and_off(self, shell: Shell) -> None:
        assert "in memory" in self.findings(shell, {"mode": "auto"})[0][1]
        assert "embedded" in self.findings(shell, "embedded")[0][1]
        assert self.findings(shell, "off") == [("ok", "off")]

"""Gateways with a real Valkey behind them: what they share, and that its faults fail no request."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import valkeys
from engines.scripted import ScriptedEngine
from engines.scripts import chat, cut, fail
from engines.signals import Gate
from gateways import Gateway, chat_body, engine_at
from shell import Running, Shell
from valkeys import Valkey

StartGateway = Callable[..., Gateway]
StartValkey = Callable[..., Valkey]
StartEngine = Callable[..., ScriptedEngine]
LIMIT_S = 20.0


@pytest.fixture
def engine(scripted: Callable[..., ScriptedEngine]) -> ScriptedEngine:
    return scripted(kind="llamacpp")


@pytest.fixture
def start(gateway: StartGateway, engine: ScriptedEngine) -> StartGateway:
    """Starts gateways in front of one engine, with a cache that has been reached; nothing of it is in memory."""

    def start(url: str, **more: Any) -> Gateway:
        wait = more.pop("wait", True)
        cache = {"url": url, "memory": 0, "lookup_ms": 2000, **more.pop("cache", {})}
        made = gateway(engines=[engine_at(engine, "a")], cache=cache, **more)
        if wait:
            made.wait_until_reached()
        return made

    return start


async def flushed(gateway: Gateway) -> None:
    await asyncio.to_thread(gateway.wait_until_kept)


async def ask(gateway: Gateway, body: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
    async with gateway.client(headers=headers) as client:
        return await client.post("/v1/chat/completions", json=body or chat_body())


def said(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return response.headers["x-paceline-cache"]


async def led(
    start: StartGateway, valkey: StartValkey, engine: ScriptedEngine
) -> tuple[Gateway, Gateway, asyncio.Task[httpx.Response]]:
    """Return two gateways of one cache, the first of which has asked the engine for a stream, and its answer."""
    url = valkey().url
    one, two = start(url), start(url)
    first = asyncio.create_task(ask(one, chat_body(stream=True)))
    await engine.received(0)
    return one, two, first


class TestTwoGateways:
    async def test_one_answers_what_the_other_has_asked(
        self, start: StartGateway, valkey: StartValkey, engine: ScriptedEngine
    ) -> None:
        url = valkey().url
        one, two = start(url), start(url)
        made = await ask(one)
        await flushed(one)
        body, stream = await ask(two), await ask(two, chat_body(stream=True))
        assert (said(body), said(stream)) == ("hit", "hit")
        assert body.content == made.content
        assert len(engine.requests) == 1

    async def test_equal_requests_to_both_are_one_call(
        self, start: StartGateway, valkey: StartValkey, engine: ScriptedEngine
    ) -> None:
        gate = Gate()
        engine.always(chat(gate=gate))
        _, two, first = await led(start, valkey, engine)
        async with two.client() as client:
            streaming = client.stream("POST", "/v1/chat/completions", json=chat_body(stream=True))
            gate.release(2)
            async with streaming as second:
                assert second.headers["x-paceline-cache"] == "coalesced"
                assert second.headers["x-paceline-deployment"]
                third = asyncio.create_task(ask(two, chat_body(stream=True)))
                gate.open()
                text = "".join([line async for line in second.aiter_lines()])
        assert "[DONE]" in text
        assert (await first).text.replace("\n", "") == (await third).text.replace("\n", "") == text
        assert len(engine.requests) == 1

    @pytest.mark.parametrize("kind", ["llamacpp", "vllm"])
    @pytest.mark.parametrize("first", [True, False])
    async def test_a_stream_to_one_and_a_body_to_the_other_are_one_call(
        self, gateway: StartGateway, valkey: StartValkey, scripted: StartEngine, kind: str, first: bool
    ) -> None:
        engine, gate, url = scripted(kind=kind), Gate(), valkey().url
        engine.always(chat([{"reasoning_content": "Hm. "}, "Hel", "lo"], gate=gate))
        cache = {"url": url, "memory": 0, "lookup_ms": 2000}
        one, two = (gateway(engines=[engine_at(engine, "a")], cache=cache) for _ in range(2))
        for each in (one, two):
            await asyncio.to_thread(each.wait_until_reached)
        leading = asyncio.create_task(ask(one, chat_body(stream=first)))
        await engine.received(0)
        following = asyncio.create_task(ask(two, chat_body(stream=not first)))
        await asyncio.to_thread(one.wait_until_followed)
        gate.open()
        assert (said(await leading), said(await following)) == ("miss", "coalesced")
        assert len(engine.requests) == 1
        streamed, whole = (leading, following) if first else (following, leading)
        message = (await whole).json()["choices"][0]["message"]
        assert message["content"] == "Hello"
        lines = [line[6:] for line in (await streamed).text.split("\n\n") if line]
        deltas = [json.loads(line)["choices"][0]["delta"] for line in lines[:-1]]
        assert lines[-1] == "[DONE]"
        assert "".join(delta.get("content") or "" for delta in deltas) == "Hello"
        reasoning = "".join(delta.get("reasoning_content") or "" for delta in deltas)
        assert reasoning == message.get("reasoning_content", "")
        assert reasoning == ("Hm. " if kind == "llamacpp" or first else "")  # the scripted vLLM's body has none

    async def test_a_stream_that_was_kept_alive_while_the_store_was_slow_is_a_hit_all_the_same(
        self, start: StartGateway, valkey: StartValkey, engine: ScriptedEngine
    ) -> None:
        server = valkey()
        gateway = start(server.url, cache={"lookup_ms": 10_000}, server={"keepalive_s": 0.05})
        await ask(gateway)
        await flushed(gateway)
        server.freeze()
        body = chat_body(stream=True)
        async with gateway.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as stream:
            lines = stream.aiter_lines()
            assert await anext(lines) == ": keep-alive"
            server.thaw()
            text = "".join([line async for line in lines if line.startswith("data: ")])
        assert stream.status_code == 200
        assert "Hel" in text
        assert text.count("[DONE]") == 1
        assert len(engine.requests) == 1

    async def test_when_the_leader_fails_in_mid_answer_the_follower_is_told(
        self, start: StartGateway, valkey: StartValkey, engine: ScriptedEngine
    ) -> None:
        gate = Gate()
        engine.always(cut(gate=gate))
        one, two, first = await led(start, valkey, engine)
        second = asyncio.create_task(ask(two, chat_body(stream=True)))
        await asyncio.to_thread(one.wait_until_followed)
        gate.open()
        for response in (await first, await second):
            assert "error" in response.text
            assert "[DONE]" not in response.text

    async def test_when_the_leader_fails_before_the_first_byte_the_follower_asks_itself(
        self, start: StartGateway, valkey: StartValkey, engine: ScriptedEngine
    ) -> None:
        gate = Gate()
        engine.next(fail(gate=gate))
        one, two, first = await led(start, valkey, engine)
        second = asyncio.create_task(ask(two, chat_body(stream=True)))
        await asyncio.to_thread(one.wait_until_followed)
        gate.open()
        assert (await first).status_code >= 500
        assert "[DONE]" in (await second).text
        assert len(engine.requests) == 2

    async def test_encrypted_answers_are_shared_by_who_has_the_key(
        self, start: StartGateway, valkey: StartValkey, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KEY_ONE", "11" * 32)
        monkeypatch.setenv("KEY_TWO", "22" * 32)
        server = valkey()
        old = {"encryption": [{"id": "1", "env": "KEY_ONE"}]}
        both = {"encryption": [{"id": "2", "env": "KEY_TWO"}, {"id": "1", "env": "KEY_ONE"}]}
        new = {"encryption": [{"id": "2", "env": "KEY_TWO"}]}
        one = start(server.url, cache=old)
        await ask(one)
        await flushed(one)
        assert said(await ask(start(server.url, cache=both))) == "hit"
        with server.client() as client:
            assert not any(b"Hel" in (client.get(key) or b"") for key in client.keys("*"))
        assert said(await ask(start(server.url, cache=new))) == "miss"


class TestFaults:
    async def test_frozen_killed_and_restarted_under_load_no_request_fails(
        self, start: StartGateway, valkey: StartValkey
    ) -> None:
        server = valkey(tcp=True)
        gateway = start(server.url, cache={"lookup_ms": 20})
        outcomes: list[str] = []
        stop = asyncio.Event()

        async def load(number: int) -> None:
            async with gateway.client() as client:
                i = 0
                while not stop.is_set():
                    i += 1
                    body = chat_body(f"{number} {i % 20}", stream=bool(i % 2))
                    outcomes.append(said(await client.post("/v1/chat/completions", json=body)))

        async def until(outcome: str) -> None:
            del outcomes[:]
            while outcome not in outcomes:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        async with asyncio.timeout(60.0), asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(load(number))
            await until("hit")
            server.freeze()
            await until("bypass")
            server.thaw()
            await until("hit")
            server.kill()
            await until("bypass")
            server.start()
            await until("hit")
            stop.set()

    async def test_an_entry_that_cannot_be_read_is_a_miss_deleted_and_said_once(
        self, start: StartGateway, valkey: StartValkey, caplog: pytest.LogCaptureFixture
    ) -> None:
        server = valkey()
        gateway = start(server.url)
        for text in ("one", "two"):
            await ask(gateway, chat_body(text))
        await flushed(gateway)
        with server.client() as client:
            names = client.keys("paceline:*:*")
            assert len(names) == 2
            for name in names:
                client.set(name, b"garbage")
        assert [said(await ask(gateway, chat_body(text))) for text in ("one", "two")] == ["miss", "miss"]
        await flushed(gateway)
        assert [said(await ask(gateway, chat_body(text))) for text in ("one", "two")] == ["hit", "hit"]
        assert len([r for r in caplog.records if "is deleted" in r.getMessage()]) == 1

    async def test_one_that_is_not_there_is_a_bypass(self, start: StartGateway, valkey: StartValkey) -> None:
        server = valkey(tcp=True)
        server.kill()
        gateway = start(server.url, wait=False)
        assert said(await ask(gateway)) == "bypass"
        assert said(await ask(gateway, chat_body(stream=True))) == "bypass"

    async def test_only_is_refused_when_the_store_does_not_answer(
        self, start: StartGateway, valkey: StartValkey
    ) -> None:
        server = valkey(tcp=True)
        server.kill()
        gateway = start(server.url, wait=False)
        assert (await ask(gateway, **{"x-paceline-cache": "only"})).status_code == 504


class TestClearingForAll:
    async def test_what_one_gateway_clears_is_gone_from_the_others_memory(
        self, start: StartGateway, valkey: StartValkey
    ) -> None:
        server = valkey()
        one, two = (start(server.url, cache={"memory": 1 << 20}) for _ in range(2))
        for text in ("a", "b"):
            await ask(one, chat_body(text))
            await flushed(one)
            assert said(await ask(two, chat_body(text))) == "hit"
        assert await cleared(one, older_than_s=3600) == 0
        with server.client() as client:
            client.xadd("paceline:cleared", {"c": b"of another version"})
        assert await memory_of(two) == 2
        assert await cleared(one) == 2
        await gone(two)

    async def test_a_server_that_was_restarted_and_has_forgotten_all_still_passes_it_on(
        self, start: StartGateway, valkey: StartValkey
    ) -> None:
        server = valkey()
        one, two = (start(server.url, cache={"memory": 1 << 20}) for _ in range(2))
        for _ in range(2):
            await ask(two)
            await flushed(two)
            with server.client() as client:  # as by a clock that was ahead
                client.xadd("paceline:cleared", {"c": b""}, id="9999999999999-0")
            await cleared(one)
            await gone(two)
            await ask(two)
            server.kill()
            server.start()
            for each in (one, two):
                await ask(each, chat_body("this fails or not"))
                await asyncio.to_thread(each.wait_until_reached)
            assert await memory_of(two) > 0
            await cleared(one)
            await gone(two)


async def cleared(gateway: Gateway, **body: Any) -> int:
    """Clear at one gateway, as `paceline cache clear` does; returns how many entries."""
    async with gateway.client() as client:
        async with asyncio.timeout(LIMIT_S):
            while (response := await client.post("/admin/cache/clear", json=body)).status_code == 503:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    return int(response.json()["deleted"])


async def memory_of(gateway: Gateway) -> int:
    async with gateway.client() as client:
        return int((await client.get("/admin/cache")).json()["memory"]["entries"])


async def gone(gateway: Gateway) -> None:
    async with asyncio.timeout(LIMIT_S):
        while await memory_of(gateway):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


class TestEmbedded:
    @pytest.fixture(autouse=True)
    def _needs_a_server(self) -> None:
        if why := valkeys.available():
            pytest.skip(why)

    async def test_answers_survive_a_restart(self, tmp_path: Any, engine: ScriptedEngine) -> None:
        for expected in ("miss", "hit"):
            gateway = Gateway(tmp_path, engines=[engine_at(engine, "a")], cache={"url": "embedded", "lookup_ms": 2000})
            try:
                await asyncio.to_thread(gateway.wait_until_reached)
                assert said(await ask(gateway)) == expected
                pid = gateway.house.caching._embedded.pid  # type: ignore[union-attr]
                assert pid is not None
            finally:
                await asyncio.to_thread(gateway.stop)
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    async def test_killed_it_comes_back_with_what_it_held(self, start: StartGateway) -> None:
        gateway = start("embedded", cache={"memory": 0})
        embedded = gateway.house.caching._embedded  # type: ignore[union-attr]
        assert embedded is not None
        await ask(gateway)
        await flushed(gateway)
        before = embedded.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        async with asyncio.timeout(LIMIT_S):
            while embedded.pid in (None, before) or said(await ask(gateway)) != "hit":  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def test_gateways_on_one_data_folder_share_it(self, tmp_path: Any, engine: ScriptedEngine) -> None:
        options: dict[str, Any] = {"engines": [engine_at(engine, "a")], "cache": {"url": "embedded", "lookup_ms": 2000}}
        one = Gateway(tmp_path, **options)
        two = Gateway(tmp_path, **options)
        try:
            await asyncio.to_thread(one.wait_until_reached)
            await asyncio.to_thread(two.wait_until_reached)
            await ask(one)
            await flushed(one)
            assert said(await ask(two)) == "hit"
        finally:
            await asyncio.to_thread(one.stop)
            await asyncio.to_thread(two.stop)


class TestTwoProcesses:
    """As they run in production: two `paceline up` in front of one engine and one Valkey."""

    @pytest.fixture
    def pair(self, shell: Shell, engine: ScriptedEngine, valkey: StartValkey) -> tuple[Running, Running]:
        url = valkey().url
        shell.environment["PACELINE_CACHE__MODE"] = "auto"
        shell.configure(
            f"engines: [{{name: a, url: '{engine.url}', kind: llamacpp, models: {{'{engine.model}': m}}}}]\n"
            f"routing: {{measure_at_start: false}}\ncache: {{url: '{url}', lookup_ms: 2000}}\n"
        )
        running = shell.up(), shell.up()
        with httpx.Client(timeout=LIMIT_S) as client:
            for each in running:
                end = time.monotonic() + LIMIT_S
                while client.get(f"{each.url}/admin/cache").json()["store"]["read"] != "works":
                    assert time.monotonic() < end, "the cache's server is not reached"
        return running

    async def test_a_hit_and_one_call_for_both(self, pair: tuple[Running, Running], engine: ScriptedEngine) -> None:
        one, two = pair
        gate = Gate()
        engine.always(chat(gate=gate))
        async with httpx.AsyncClient(timeout=LIMIT_S) as client:
            first = asyncio.create_task(client.post(f"{one.url}/v1/chat/completions", json=chat_body(stream=True)))
            await engine.received(0)
            second = asyncio.create_task(client.post(f"{two.url}/v1/chat/completions", json=chat_body(stream=True)))
            gate.open()
            said_ = {said(await first), said(await second)}
            assert said_ <= {"miss", "coalesced", "hit"}
            third = await client.post(f"{two.url}/v1/chat/completions", json=chat_body())
        assert said(third) == "hit"
        assert len(engine.requests) == 1

    async def test_when_the_leading_process_is_killed_before_the_first_byte_the_other_asks(
        self, pair: tuple[Running, Running], engine: ScriptedEngine
    ) -> None:
        one, two = pair
        gate = Gate()
        engine.always(chat(gate=gate))
        async with httpx.AsyncClient(timeout=LIMIT_S) as client:
            first = asyncio.create_task(client.post(f"{one.url}/v1/chat/completions", json=chat_body(stream=True)))
            await engine.received(0)
            second = asyncio.create_task(client.post(f"{two.url}/v1/chat/completions", json=chat_body(stream=True)))
            one.process.kill()
            await engine.received(1)
            gate.open()
            assert "[DONE]" in (await second).text
            with pytest.raises(httpx.HTTPError):
                await first

    async def test_when_it_is_killed_in_mid_answer_the_other_says_so(
        self, pair: tuple[Running, Running], engine: ScriptedEngine
    ) -> None:
        one, two = pair
        gate = Gate()
        engine.always(chat(gate=gate))
        async with httpx.AsyncClient(timeout=LIMIT_S) as client:
            first = asyncio.create_task(client.post(f"{one.url}/v1/chat/completions", json=chat_body(stream=True)))
            await engine.received(0)
            gate.release(2)
            streaming = client.stream("POST", f"{two.url}/v1/chat/completions", json=chat_body(stream=True))
            async with streaming as second:
                lines = second.aiter_lines()
                assert "data" in await anext(lines)
                one.process.kill()
                text = "".join([line async for line in lines])
            with pytest.raises(httpx.HTTPError):
                await first
        assert "engine_interrupted" in text
        assert "[DONE]" not in text
        assert len(engine.requests) == 1

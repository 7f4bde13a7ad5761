"""Repeated prompts through a whole gateway: answered once, in either form, and never by what may not answer them."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from engines.scripted import Exchange, ScriptedEngine
from engines.scripts import Script, chat, cut, fail, status
from engines.signals import Gate
from gateways import Gateway, chat_body, engine_at

StartGateway = Callable[..., Gateway]
StartEngine = Callable[..., ScriptedEngine]
CACHE = {"mode": "auto"}
TOKENS = [{"role": "assistant", "content": ""}, {"reasoning_content": "Hm. "}, "Hel", "lo ", '"usage": {"model":"x"}']
CALL = [
    {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
]
THOUGHT_AND_CALL = [{"reasoning_content": "Hm. "}, *CALL]


@pytest.fixture
def engine(scripted: StartEngine) -> ScriptedEngine:
    return scripted(kind="llamacpp")


@pytest.fixture
def cached(gateway: StartGateway, engine: ScriptedEngine) -> Gateway:
    return gateway(engines=[engine_at(engine, "a")], cache=CACHE)


async def ask(gateway: Gateway, body: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
    async with gateway.client(headers=headers) as client:
        return await client.post("/v1/chat/completions", json=body or chat_body())


def said(response: httpx.Response) -> str:
    return response.headers["x-paceline-cache"]


async def running(gateway: Gateway, requests: int) -> None:
    """Return once so many requests are being answered."""
    async with asyncio.timeout(20.0):
        while gateway.call(lambda: gateway.house.admission.running) != requests:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def events(response: httpx.Response) -> list[Any]:
    lines = [line[6:] for line in response.text.split("\n\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def text_of(chunks: list[Any], field: str = "content") -> str:
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk != "[DONE]" and chunk["choices"]]
    return "".join(delta.get(field) or "" for delta in deltas)


def in_either_form(tokens: list[Any], finish: str, gate: Gate) -> Script:
    """As ``chat``; one body as well has what is no text."""

    async def script(exchange: Exchange) -> None:
        if exchange.request.json.get("stream") or isinstance(tokens[0], str):
            await chat(tokens, finish=finish, gate=gate)(exchange)
            return
        await gate.pass_through()
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
        message = {"role": "assistant", "content": None, "reasoning_content": "Hm. ", "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        usage = {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
        await exchange.json({"object": "chat.completion", "model": "x", "choices": [choice], "usage": usage})

    return script


def arguments_of(chunks: list[Any]) -> str:
    """What the tool calls of a stream are called with."""
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk != "[DONE]" and chunk["choices"]]
    return "".join(c["function"].get("arguments", "") for delta in deltas for c in delta.get("tool_calls") or ())


class TestBothForms:
    async def test_a_kept_stream_that_no_body_can_be_made_of_is_an_error_that_says_what_to_do(
        self, cached: Gateway, engine: ScriptedEngine
    ) -> None:
        odd = {"content": "a", "tool_calls": 5}
        engine.next(chat(["Hel", odd, "lo"]), chat(["Hello"]))
        made = await ask(cached, chat_body(stream=True))
        assert events(made)[-1] == "[DONE]"
        refused = await ask(cached, chat_body())
        assert refused.status_code == 502
        assert "cannot be given as one body" in refused.json()["error"]["message"]
        assert "x-paceline-cache: refresh" in refused.json()["error"]["message"]
        again = await ask(cached, chat_body(stream=True))
        assert said(again) == "hit"
        fresh = await ask(cached, chat_body(), **{"x-paceline-cache": "refresh"})
        assert fresh.json()["choices"][0]["message"]["content"] == "Hello"

    @pytest.mark.parametrize("kind", ["llamacpp", "vllm", "ollama", "openai"])
    @pytest.mark.parametrize("first", [True, False])
    @pytest.mark.parametrize("second", [True, False])
    async def test_whatever_came_first_the_second_is_a_hit_with_the_same_content(
        self, gateway: StartGateway, scripted: StartEngine, kind: str, first: bool, second: bool
    ) -> None:
        engine = scripted(kind=kind)
        engine.always(chat(["Hel", "lo"]))
        cached = gateway(engines=[engine_at(engine, "a")], cache=CACHE)
        made = await ask(cached, chat_body(stream=first))
        again = await ask(cached, chat_body(stream=second))
        assert (said(made), said(again)) == ("miss", "hit")
        assert len(engine.requests) == 1
        for response, streamed in ((made, first), (again, second)):
            if streamed:
                chunks = events(response)
                assert chunks[-1] == "[DONE]"
                assert text_of(chunks) == "Hello"
                assert not any(chunk.get("usage") for chunk in chunks[:-1])
                assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
            else:
                body = response.json()
                assert body["choices"][0]["message"]["content"] == "Hello"
                assert body["usage"]["prompt_tokens"] == 5
                assert body["choices"][0]["finish_reason"] == "stop"
        if first == second:
            assert made.content == again.content
        assert again.headers["x-paceline-deployment"] == made.headers["x-paceline-deployment"]
        assert int(again.headers["age"]) >= 0
        assert again.headers["x-paceline-cache-key"] == made.headers["x-paceline-cache-key"]

    async def test_a_stream_replays_the_engines_chunks_and_a_text_that_looks_like_a_usage(
        self, cached: Gateway, engine: ScriptedEngine
    ) -> None:
        engine.always(chat(TOKENS))
        made = await ask(cached, chat_body(stream=True))
        again = await ask(cached, chat_body(stream=True))
        assert said(again) == "hit"
        assert events(again) == events(made)
        assert text_of(events(again)) == 'Hello "usage": {"model":"x"}'
        assert text_of(events(again), "reasoning_content") == "Hm. "
        body = (await ask(cached, chat_body())).json()
        assert body["choices"][0]["message"]["reasoning_content"] == "Hm. "

    async def test_a_usage_chunk_comes_for_those_who_asked_whoever_asked_first(
        self, cached: Gateway, engine: ScriptedEngine
    ) -> None:
        plain = await ask(cached, chat_body(stream=True))
        with_usage = await ask(cached, chat_body(stream=True, stream_options={"include_usage": True}))
        assert said(with_usage) == "hit"
        assert len(events(with_usage)) == len(events(plain)) + 1
        assert events(with_usage)[-2]["usage"]["prompt_tokens"] == 5
        assert events(with_usage)[-2]["choices"] == []

    @pytest.mark.parametrize("first", [True, False])
    async def test_tool_calls_survive(self, cached: Gateway, engine: ScriptedEngine, first: bool) -> None:
        engine.always(chat(CALL, finish="tool_calls"))
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
        await ask(cached, chat_body(stream=first, tools=tools))
        body = await ask(cached, chat_body(tools=tools))
        assert said(body) == "hit"
        call = body.json()["choices"][0]["message"]["tool_calls"][0]
        assert (call["id"], call["function"]) == ("c1", {"name": "f", "arguments": '{"a":1}'})
        stream = await ask(cached, chat_body(stream=True, tools=tools))
        pieces = [c["choices"][0]["delta"].get("tool_calls") for c in events(stream)[:-1]]
        assert "".join(p[0]["function"]["arguments"] for p in pieces if p) == '{"a":1}'

    async def test_the_recorded_pace_on_request(self, cached: Gateway, engine: ScriptedEngine) -> None:
        made = await ask(cached, chat_body(stream=True))
        paced = await ask(cached, chat_body(stream=True), **{"x-paceline-cache-pace": "recorded"})
        assert said(paced) == "hit"
        assert events(paced) == events(made)

    async def test_the_answer_bears_the_name_that_is_asked_for_now(
        self, gateway: StartGateway, engine: ScriptedEngine
    ) -> None:
        models = {"m": {"aliases": ["small"]}}
        cached = gateway(engines=[engine_at(engine, "a")], cache=CACHE, models=models)
        await ask(cached, chat_body(stream=True))
        for model in ("small", "m@llamacpp"):
            stream = await ask(cached, chat_body(model=model, stream=True))
            body = await ask(cached, chat_body(model=model))
            assert (said(stream), said(body)) == ("hit", "hit")
            assert {chunk["model"] for chunk in events(stream)[:-1]} == {model}
            assert body.json()["model"] == model


class TestWhatIsAHit:
    async def test_white_space_and_order_are_one_a_parameter_is_another(
        self, cached: Gateway, engine: ScriptedEngine
    ) -> None:
        await ask(cached, chat_body(temperature=0))
        async with cached.client() as client:
            body = (
                '{ "temperature" : 0.0, "user": "u",\n "messages": [{"content": "hi", "role": "user"}], "model": "m"}'
            )
            again = await client.post("/v1/chat/completions", content=body)
        assert said(again) == "hit"
        for more in ({"max_tokens": 5}, {"seed": 1}, {"stop": ["x"]}, {"logprobs": True}, {"options": {"num_ctx": 9}}):
            assert said(await ask(cached, chat_body(temperature=0, **more))) == "miss"

    async def test_variety_is_not_answered_from_the_cache(self, cached: Gateway, engine: ScriptedEngine) -> None:
        for body in (chat_body(temperature=0.7), chat_body(temperature=0.7)):
            assert said(await ask(cached, body)) == "off"
        assert len(engine.requests) == 2

    async def test_what_a_client_says_of_the_cache(self, cached: Gateway, engine: ScriptedEngine) -> None:
        engine.next(chat(["one"]), chat(["two"]), chat(["three"]), chat(["four"]))
        assert (await ask(cached, **{"x-paceline-cache": "only"})).status_code == 504
        await ask(cached)
        refreshed = await ask(cached, **{"cache-control": "no-cache"})
        assert (said(refreshed), refreshed.json()["choices"][0]["message"]["content"]) == ("miss", "two")
        kept = await ask(cached, **{"x-paceline-cache": "only"})
        assert (said(kept), kept.json()["choices"][0]["message"]["content"]) == ("hit", "two")
        skipped = await ask(cached, **{"cache-control": "no-store"})
        assert (said(skipped), skipped.json()["choices"][0]["message"]["content"]) == ("off", "three")
        assert (await ask(cached)).json()["choices"][0]["message"]["content"] == "two"
        assert said(await ask(cached, **{"cache-control": "max-age=3600"})) == "hit"
        wrong = await ask(cached, **{"x-paceline-cache": "always"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-paceline-cache")

    async def test_only_has_openais_form_of_an_error(self, cached: Gateway) -> None:
        for body in (chat_body(), chat_body(temperature=1.0)):
            response = await ask(cached, body, **{"x-paceline-cache": "only"})
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["type"]) == (504, "not_cached", "server_error")

    async def test_settings_of_models_and_keys(self, gateway: StartGateway, engine: ScriptedEngine) -> None:
        off = gateway(engines=[engine_at(engine, "a")], cache=CACHE, models={"m": {"cache": {"mode": "off"}}})
        assert [said(await ask(off)) for _ in range(2)] == ["off", "off"]
        keys = [
            {"name": "ann", "hash": _hash("a" * 20), "cache": "deterministic"},
            {"name": "bob", "hash": _hash("b" * 20)},
        ]
        keyed = gateway(engines=[engine_at(engine, "a")], cache=CACHE, auth={"keys": keys})
        assert said(await ask(keyed, authorization=f"Bearer {'a' * 20}")) == "off"
        assert said(await ask(keyed, authorization=f"Bearer {'b' * 20}")) == "miss"
        brief = gateway(
            engines=[engine_at(engine, "a", models={engine.model: "m", "other": "n"})],
            cache=CACHE,
            models={"m": {"cache": {"ttl_s": 1000}}},
        )
        await ask(brief)
        assert brief.house.caching is not None
        [(_, kept)] = brief.house.caching.stores.memory.matching("*", 10)
        assert 900 <= kept.expires - kept.created <= 1000

    async def test_what_is_not_whole_is_not_kept(self, cached: Gateway, engine: ScriptedEngine) -> None:
        for script in (
            cut(),
            fail(),
            status(400, {"error": {"message": "no"}}),
            chat(finish="length"),
            chat(finish="content_filter"),
        ):
            engine.next(script)
            await ask(cached, chat_body(stream=True))
        assert said(await ask(cached)) == "miss"
        engine.next(chat(finish="length"))
        await ask(cached, chat_body(max_tokens=3))
        assert said(await ask(cached, chat_body(max_tokens=3))) == "hit"


class TestPrecision:
    async def test_an_entry_answers_only_where_its_deployment_might(
        self, gateway: StartGateway, scripted: StartEngine
    ) -> None:
        good, small = scripted(kind="vllm"), scripted(kind="openai")
        good.always(chat(["sixteen"]))
        small.always(chat(["four"]))
        cached = gateway(
            engines=[engine_at(good, "good", precision="bf16"), engine_at(small, "small", precision="int4")],
            cache=CACHE,
        )
        assert said(await ask(cached, chat_body(model="m@int4"))) == "miss"
        for model in ("m", "m@bf16", "m@int8+", "m@vllm"):
            response = await ask(cached, chat_body(model=model))
            assert response.json()["choices"][0]["message"]["content"] == "sixteen", model
        assert len(good.requests) == 1
        assert (await ask(cached, chat_body(model="m@int4"))).json()["choices"][0]["message"]["content"] == "four"
        pinned = await ask(cached, **{"x-paceline-deployment": "small"})
        assert (said(pinned), pinned.json()["choices"][0]["message"]["content"]) == ("hit", "four")
        assert len(small.requests) == 1

    async def test_new_weights_hit_no_old_entry(self, gateway: StartGateway, engine: ScriptedEngine) -> None:
        cached = gateway(engines=[engine_at(engine, "a", options={"top_k": 1})], cache=CACHE)
        await ask(cached)
        assert said(await ask(cached)) == "hit"
        fleet = cached.house.fleet

        def other_settings() -> None:
            adapter = fleet.engines[0].source.adapter
            assert adapter is not None
            adapter.endpoint.options["top_k"] = 2
            fleet.changed()

        cached.call(other_settings)
        assert said(await ask(cached)) == "miss"


class TestScopes:
    @pytest.fixture
    def keys(self) -> list[dict[str, Any]]:
        return [{"name": name, "hash": _hash(name * 20)} for name in ("ann", "bob", "eve")]

    async def test_no_answer_crosses_from_one_key_to_another(
        self, gateway: StartGateway, engine: ScriptedEngine, keys: list[dict[str, Any]]
    ) -> None:
        cached = gateway(engines=[engine_at(engine, "a")], cache={"mode": "all"}, auth={"keys": keys})
        tries: list[dict[str, Any]] = [
            {},
            {"user": "ann"},
            {"metadata": {"key": "ann"}},
            {"scope": "key:ann"},
            {"x-paceline-scope": "ann"},
            {"stream": True},
            {"model": "m@a"},
        ]
        for more in tries:
            await ask(cached, {**chat_body("the secret"), **more}, authorization=f"Bearer {'ann' * 20}")
        for more in tries:
            for name in ("bob", "eve"):
                response = await ask(
                    cached,
                    {**chat_body("the secret"), **more},
                    authorization=f"Bearer {name * 20}",
                    **{"x-paceline-cache": "only", "x-api-key": "ann" * 20, "x-forwarded-user": "ann"},
                )
                assert response.status_code == 504, (name, more)

    async def test_groups_share_and_shared_is_for_all(
        self, gateway: StartGateway, engine: ScriptedEngine, keys: list[dict[str, Any]]
    ) -> None:
        for cache, expected in (
            ({"groups": {"team": ["ann", "bob"]}}, {"bob": "hit", "eve": "miss"}),
            ({"shared": True}, {"bob": "hit", "eve": "hit"}),
        ):
            cached = gateway(engines=[engine_at(engine, "a")], cache=cache, auth={"keys": keys})
            await ask(cached, authorization=f"Bearer {'ann' * 20}")
            for name, outcome in expected.items():
                assert said(await ask(cached, authorization=f"Bearer {name * 20}")) == outcome

    async def test_equal_requests_of_two_keys_are_two_calls(
        self, gateway: StartGateway, engine: ScriptedEngine, keys: list[dict[str, Any]]
    ) -> None:
        gate = Gate()
        engine.always(chat(gate=gate))
        cached = gateway(engines=[engine_at(engine, "a")], cache=CACHE, auth={"keys": keys})
        asking = [asyncio.create_task(ask(cached, authorization=f"Bearer {name * 20}")) for name in ("ann", "bob")]
        await engine.received(1)
        gate.open()
        assert [said(await each) for each in asking] == ["miss", "miss"]


class TestOneFlight:
    async def test_two_hundred_equal_requests_are_one_call(self, cached: Gateway, engine: ScriptedEngine) -> None:
        gate = Gate()
        engine.always(chat(gate=gate))
        limits = httpx.Limits(max_connections=None)
        async with cached.client(limits=limits) as client:
            asking = [
                asyncio.create_task(client.post("/v1/chat/completions", json=chat_body(stream=True)))
                for i in range(200)
            ]
            await engine.received(0)
            await running(cached, 200)
            gate.open()
            responses = await asyncio.gather(*asking)
        assert len(engine.requests) == 1
        assert {text_of(events(response)) for response in responses} == {"Hello!"}
        assert sorted(map(said, responses)) == ["coalesced"] * 199 + ["miss"]

    async def test_those_that_wait_for_a_place_are_answered_by_what_came_meanwhile(
        self, gateway: StartGateway, engine: ScriptedEngine
    ) -> None:
        gate = Gate()
        engine.always(chat(gate=gate))
        cached = gateway(engines=[engine_at(engine, "a")], cache=CACHE, limits={"max_concurrent": 2})
        asking = [asyncio.create_task(ask(cached)) for _ in range(20)]
        await engine.received(0)
        async with asyncio.timeout(20.0):
            while cached.call(lambda: cached.house.admission.waiting) < 18:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        gate.open()
        outcomes = sorted(map(said, await asyncio.gather(*asking)))
        assert outcomes == ["coalesced"] + ["hit"] * 18 + ["miss"]
        assert len(engine.requests) == 1

    async def test_a_follower_joins_mid_stream_and_a_body_is_made_of_the_stream(
        self, cached: Gateway, engine: ScriptedEngine
    ) -> None:
        gate = Gate()
        engine.always(chat(gate=gate))
        async with cached.client() as client:
            streaming = client.stream("POST", "/v1/chat/completions", json=chat_body(stream=True))
            async with streaming as first:
                lines = first.aiter_lines()
                gate.release(2)
                while "Hel" not in await anext(lines):
                    pass
                async with client.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as second:
                    assert said(second) == "coalesced"
                    theirs = second.aiter_lines()
                    while "Hel" not in await anext(theirs):
                        pass
                    body = asyncio.create_task(client.post("/v1/chat/completions", json=chat_body()))
                    await running(cached, 3)
                    gate.open()
                    assert "[DONE]" in "".join([line async for line in theirs])
        assert (await body).json()["choices"][0]["message"]["content"] == "Hello!"
        assert len(engine.requests) == 1

    @pytest.mark.parametrize("kind", ["llamacpp", "vllm", "ollama", "openai"])
    @pytest.mark.parametrize("first", [True, False])
    async def test_a_stream_and_a_body_at_once_are_one_call_tools_reasoning_and_usage_included(
        self, gateway: StartGateway, scripted: StartEngine, kind: str, first: bool
    ) -> None:
        engine, gate = scripted(kind=kind), Gate()
        finish = "stop" if kind == "ollama" else "tool_calls"
        engine.always(in_either_form(["Hello"] if kind == "ollama" else THOUGHT_AND_CALL, finish, gate))
        cached = gateway(engines=[engine_at(engine, "a")], cache=CACHE)
        asking = {}
        for stream in (first, not first):
            body = chat_body(stream=stream, stream_options={"include_usage": True}) if stream else chat_body()
            asking[stream] = asyncio.create_task(ask(cached, body))
            await engine.received(0)
            await running(cached, len(asking))
        quiet = asyncio.create_task(ask(cached, chat_body(stream=True)))
        await running(cached, 3)
        gate.open()
        streamed, whole = await asking[True], await asking[False]
        assert len(engine.requests) == 1
        assert (said(streamed), said(whole)) == (("miss", "coalesced") if first else ("coalesced", "miss"))
        assert said(await quiet) == "coalesced"
        body, chunks = whole.json(), events(streamed)
        assert chunks[-1] == "[DONE]"
        assert chunks[-2]["usage"] == body["usage"]
        assert not any(chunk.get("usage") for chunk in events(await quiet)[:-1])
        message = body["choices"][0]["message"]
        assert text_of(chunks) == (message["content"] or "")
        assert text_of(chunks, "reasoning_content") == message.get("reasoning_content", "")
        assert arguments_of(chunks) == "".join(c["function"]["arguments"] for c in message.get("tool_calls", []))
        assert [c["choices"][0]["finish_reason"] for c in chunks[:-1] if c["choices"]][-1] == finish
        assert body["choices"][0]["finish_reason"] == finish
        assert bool(arguments_of(chunks)) is (kind != "ollama")
        assert whole.headers["x-paceline-deployment"] == streamed.headers["x-paceline-deployment"]
        for stream in (True, False):
            again = await ask(cached, chat_body(stream=stream))
            assert said(again) == "hit"

    async def test_a_stream_that_joins_a_body_gets_each_piece_as_it_comes(
        self, cached: Gateway, engine: ScriptedEngine
    ) -> None:
        gate = Gate()
        engine.always(chat(gate=gate))
        whole = asyncio.create_task(ask(cached))
        await engine.received(0)
        gate.release(2)
        body = chat_body(stream=True)
        async with cached.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as stream:
            assert said(stream) == "coalesced"
            lines = stream.aiter_lines()
            while "Hel" not in await anext(lines):
                pass
            assert not whole.done()
            gate.open()
            assert "[DONE]" in "".join([line async for line in lines])
        assert (await whole).json()["choices"][0]["message"]["content"] == "Hello!"
        assert len(engine.requests) == 1

    @pytest.mark.parametrize("joined", [False, True])
    async def test_a_body_is_asked_for_again_elsewhere_unless_a_stream_has_a_part_of_it(
        self, gateway: StartGateway, scripted: StartEngine, joined: bool
    ) -> None:
        gate, engines = Gate(), [scripted(kind="llamacpp"), scripted(kind="llamacpp")]
        scripts = iter([fail(after=2, gate=gate), chat(["all ", "anew"])])
        for engine in engines:
            engine.always(lambda exchange: next(scripts)(exchange))
        cached = gateway(engines=[engine_at(each, name) for each, name in zip(engines, "ab", strict=True)], cache=CACHE)
        whole = asyncio.create_task(ask(cached))
        await running(cached, 1)
        async with cached.client() as client:
            if joined:
                async with client.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as stream:
                    lines = stream.aiter_lines()
                    while "Hel" not in await anext(lines):
                        pass
                    gate.open()
                    rest = "".join([line async for line in lines])
                assert "error" in rest
                assert "anew" not in rest
                assert (await whole).status_code == 502
            else:
                gate.open()
                assert (await whole).json()["choices"][0]["message"]["content"] == "all anew"
        assert sum(len(each.requests) for each in engines) == (1 if joined else 2)

    async def test_when_the_first_client_leaves_the_others_get_theirs(
        self, cached: Gateway, engine: ScriptedEngine
    ) -> None:
        gate = Gate()
        engine.always(chat(gate=gate))
        first = asyncio.create_task(ask(cached, chat_body(stream=True)))
        await engine.received(0)
        second = asyncio.create_task(ask(cached, chat_body(stream=True)))
        await running(cached, 2)
        first.cancel()
        await running(cached, 1)
        gate.open()
        assert text_of(events(await second)) == "Hello!"
        assert len(engine.requests) == 1
        assert not engine.requests[0].left.is_set()
        assert said(await ask(cached)) == "hit"

    @pytest.mark.parametrize("stream", [True, False])
    async def test_when_all_have_left_the_upstream_call_ends(
        self, cached: Gateway, engine: ScriptedEngine, stream: bool
    ) -> None:
        engine.always(chat(gate=Gate()))
        asking = [asyncio.create_task(ask(cached, chat_body(stream=stream))) for _ in range(3)]
        received = await engine.received(0)
        await running(cached, 3)
        for each in asking:
            each.cancel()
        await received.left.wait()
        cached.wait_until_idle()

    async def test_a_failure_is_everybodys_and_the_next_request_asks_again(
        self, cached: Gateway, engine: ScriptedEngine
    ) -> None:
        gate = Gate()
        engine.next(status(400, {"error": {"message": "the engine says no"}}))
        refused = await ask(cached)
        assert (refused.status_code, "says no" in refused.text) == (400, True)
        engine.next(cut())
        broken = await ask(cached, chat_body(stream=True))
        assert "error" in events(broken)[-1]
        gate.open()
        assert said(await ask(cached)) == "miss"

    async def test_a_request_with_a_deadline_flies_alone(self, cached: Gateway, engine: ScriptedEngine) -> None:
        gate = Gate()
        engine.always(chat(gate=gate))
        first = asyncio.create_task(ask(cached))
        await engine.received(0)
        second = asyncio.create_task(ask(cached, **{"x-paceline-deadline-ms": "60000"}))
        await engine.received(1)
        gate.open()
        assert {said(await first), said(await second)} == {"miss"}


async def test_completions_are_kept_as_well(cached: Gateway, engine: ScriptedEngine) -> None:
    body = {"model": "m", "prompt": "hi"}
    async with cached.client() as client:
        made = await client.post("/v1/completions", json=body)
        again = await client.post("/v1/completions", json={**body, "stream": True})
        plain = await client.post("/v1/completions", json=body)
    assert [said(each) for each in (made, again, plain)] == ["miss", "hit", "hit"]
    assert plain.json() == made.json()
    assert (
        "".join(c["choices"][0]["text"] for c in events(again)[:-1] if c["choices"])
        == made.json()["choices"][0]["text"]
    )


async def test_answers_from_memory_need_no_engine(cached: Gateway, engine: ScriptedEngine) -> None:
    await ask(cached)
    engine.stop()
    for _ in range(3):
        assert said(await ask(cached)) == "hit"


def _hash(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()

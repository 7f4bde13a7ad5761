"""Hosted APIs through the real litellm, in front of a scripted provider that speaks OpenAI's protocol."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
from engines.answers import CHAT_BODY, call, events, read_all, text_of
from engines.scripts import chat, cut, drop, hang, stall, status, whole

from adapters.base import Endpoint
from adapters.errors import Broken, Busy, EngineError, Interrupted, Rejected, TimedOut, Unreachable
from adapters.hosted import HostedAdapter
from policies.types import Capability, Operation

pytestmark = [
    # litellm's own: pydantic warnings at import and while it serialises its objects.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:pydantic"),
]
MODEL = "openai/engine-model"


@pytest.fixture
async def hosted(scripted):
    engine = scripted()
    models = {MODEL: "big", "gpt-4o-mini": "mini", "text-embedding-3-small": "embed"}
    adapter = HostedAdapter(Endpoint("cloud", f"{engine.url}/v1", api_key="sk-secret", models=models))
    yield adapter, engine
    await adapter.aclose()


def hosted_call(**given):
    return call(given.pop("body", None), engine_model=MODEL, **given)


async def test_models_are_those_the_operator_names_with_what_litellm_knows_of_them(hosted) -> None:
    adapter, engine = hosted
    description = await adapter.describe()
    assert (description.kind, description.label) == ("hosted", "Hosted API")
    assert description.version
    unknown, mini, embed = description.models
    assert [model.engine_model for model in description.models] == [MODEL, "gpt-4o-mini", "text-embedding-3-small"]
    assert unknown.capabilities == {Capability.CHAT}
    assert {Capability.CHAT, Capability.TOOLS, Capability.JSON_SCHEMA, Capability.VISION} <= mini.capabilities
    assert mini.context == 128000
    assert embed.capabilities == {Capability.EMBEDDINGS}
    assert (await adapter.load()).running is None
    assert (engine.requests, engine.watched) == ([], [])  # describing costs nothing


async def test_a_stream_arrives_in_openais_form_under_the_asked_for_name(hosted) -> None:
    adapter, engine = hosted
    engine.next(chat(["Hel", "lo"], prompt_tokens=7))
    answer = await adapter.send(hosted_call())
    chunks = events(await read_all(answer))
    assert text_of(chunks) == "Hello"
    assert {chunk["model"] for chunk in chunks} == {"asked-for"}
    assert not any("usage" in chunk for chunk in chunks)
    outcome = answer.outcome
    assert (outcome.prompt_tokens, outcome.output_tokens, outcome.output_chunks) == (7, 2, 2)
    assert (outcome.finish_reason, outcome.whole) == ("stop", True)
    assert outcome.first_token_at is not None
    received = engine.requests[0]
    assert received.headers["authorization"] == "Bearer sk-secret"
    assert (received.json["model"], received.json["stream"]) == ("engine-model", True)


async def test_usage_is_shown_to_those_who_asked(hosted) -> None:
    adapter, engine = hosted
    engine.next(chat(["Hel", "lo"], prompt_tokens=7))
    chunks = events(await read_all(await adapter.send(hosted_call(include_usage=True))))
    assert chunks[-1]["usage"]["total_tokens"] == 9


async def test_a_whole_answer_and_embeddings_keep_their_form(hosted) -> None:
    adapter, engine = hosted
    engine.always(chat(["Hel", "lo"]))
    answer = await adapter.send(hosted_call(stream=False))
    body = json.loads(await read_all(answer))
    assert (body["model"], body["choices"][0]["message"]["content"]) == ("asked-for", "Hello")
    assert (answer.outcome.output_tokens, answer.outcome.finish_reason) == (2, "stop")
    given = hosted_call(body={"input": ["a", "b"]}, operation=Operation.EMBEDDINGS, stream=False)
    body = json.loads(await read_all(await adapter.send(given)))
    assert [entry["embedding"] for entry in body["data"]] == [[0.5, -0.25]] * 2


@pytest.mark.parametrize(("operation", "body"), [(Operation.CHAT, None), (Operation.EMBEDDINGS, {"input": "a"})])
async def test_a_trace_goes_on_at_the_provider_and_who_asked_stays_in_the_house(hosted, operation, body) -> None:
    adapter, engine = hosted
    engine.always(chat())
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = (("traceparent", trace), ("baggage", "user=alice"))
    await read_all(await adapter.send(hosted_call(body=body, operation=operation, stream=False, headers=headers)))
    received = engine.requests[0].headers
    assert received["traceparent"] == trace
    assert received["authorization"] == "Bearer sk-secret"
    assert "baggage" not in received


async def test_tool_calls_survive_the_trip(hosted) -> None:
    adapter, engine = hosted
    function = {"name": "f", "arguments": '{"a": 1}'}
    delta = {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}
    engine.next(chat([delta], finish="tool_calls"))
    chunks = events(await read_all(await adapter.send(hosted_call())))
    made = [made for chunk in chunks for made in chunk["choices"][0]["delta"].get("tool_calls") or []]
    assert made[0]["function"] == function
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_client_cannot_turn_the_key_to_another_address(hosted) -> None:
    adapter, engine = hosted
    engine.always(chat())
    sent = {"api_base": "http://evil.example", "api_key": "x", "base_url": "http://evil.example", "mock_response": "no"}
    await read_all(await adapter.send(hosted_call(body={**CHAT_BODY, **sent, "temperature": 0.5, "future": [1]})))
    received = engine.requests[0].json
    assert (received["temperature"], received["future"]) == (0.5, [1])
    assert received["mock_response"] == "no"  # for the provider to refuse, not for litellm to obey


async def test_the_operators_options_are_litellms_own_and_a_request_may_say_otherwise(scripted) -> None:
    engine = scripted()
    options = {"custom_llm_provider": "openai", "temperature": 0.1, "top_p": 0.2}
    endpoint = Endpoint("cloud", f"{engine.url}/v1", api_key="k", models={"plain-name": "m"}, options=options)
    adapter = HostedAdapter(endpoint)
    await read_all(await adapter.send(call({**CHAT_BODY, "temperature": 0.9}, engine_model="plain-name")))
    sent = engine.requests[0].json
    assert (sent["model"], sent["temperature"], sent["top_p"]) == ("plain-name", 0.9, 0.2)
    await adapter.aclose()


@pytest.mark.parametrize(
    ("script", "kind", "code"),
    [
        (status(400), Rejected, None),
        (
            status(400, {"error": {"message": "This model's maximum context length is 8192 tokens."}}),
            Rejected,
            "context_length_exceeded",
        ),
        (status(404), Rejected, "model_not_found"),
        (status(422), Rejected, None),
        (status(429, headers={"retry-after": "7"}), Busy, None),
        (status(503), Busy, None),
        (status(500), Broken, None),
        (status(401, {"error": {"message": "Incorrect API key provided: sk-secret"}}), Broken, None),
        (drop(), (Unreachable, Broken), None),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_refusals_keep_their_meaning_and_are_not_repeated(hosted, script, kind, code, stream: bool) -> None:
    adapter, engine = hosted
    engine.always(script)
    with pytest.raises(kind) as caught:
        await read_all(await adapter.send(hosted_call(stream=stream)))
    assert caught.value.engine == "cloud"
    assert "sk-secret" not in str(caught.value)
    assert getattr(caught.value, "code", None) == code
    assert len(engine.requests) == 1


async def test_the_providers_own_waiting_time_is_kept(hosted) -> None:
    adapter, engine = hosted
    engine.next(status(429, headers={"retry-after": "7"}))
    with pytest.raises(Busy) as caught:
        await adapter.send(hosted_call())
    assert caught.value.retry_after_s == 7.0


@pytest.mark.parametrize("clean", [True, False])
async def test_an_answer_cut_in_its_middle_is_no_whole_one(hosted, clean: bool) -> None:
    adapter, engine = hosted
    engine.next(cut(after=2, clean=clean))
    answer = await adapter.send(hosted_call())
    with pytest.raises(EngineError) as caught:
        await read_all(answer)
    assert isinstance(caught.value, Interrupted | Broken)
    assert not answer.outcome.whole


async def test_a_silent_provider_is_given_up(scripted) -> None:
    engine = scripted()
    limits = {"first_byte_timeout_s": 1.0, "silence_timeout_s": 0.2}
    endpoint = Endpoint("cloud", f"{engine.url}/v1", api_key="sk-secret", models={MODEL: "m"}, **limits)  # type: ignore[arg-type]
    adapter = HostedAdapter(endpoint)
    await adapter.describe()
    engine.next(hang(), stall(after=1))
    with pytest.raises(TimedOut):
        await adapter.send(hosted_call())
    with pytest.raises(Interrupted):
        await read_all(await adapter.send(hosted_call()))
    await adapter.aclose()


async def test_a_client_that_leaves_closes_the_connection(hosted) -> None:
    adapter, engine = hosted
    engine.next(hang(), stall(after=1))
    await adapter.describe()
    waiting = asyncio.ensure_future(adapter.send(hosted_call()))
    before = await engine.received(0)
    waiting.cancel()
    await before.left.wait()
    answer = await adapter.send(hosted_call())
    while b"Hel" not in (await answer.read() or b""):
        pass
    answer.close()
    await (await engine.received(1)).left.wait()


async def test_a_stopped_provider_is_unreachable(hosted) -> None:
    adapter, engine = hosted
    engine.stop()
    with pytest.raises(Unreachable):
        await adapter.send(hosted_call())


async def test_without_the_extra_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)
    adapter = HostedAdapter(Endpoint("cloud", "", models={MODEL: "m"}))
    with pytest.raises(Unreachable, match=r"pip install 'paceline\[hosted\]'"):
        await adapter.describe()
    await adapter.aclose()


async def test_litellm_is_not_imported_before_it_is_used() -> None:
    program = "import sys, adapters.registry, adapters.hosted; sys.exit('litellm' in sys.modules)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert await process.wait() == 0


async def test_nonsense_from_the_provider_is_an_engine_error(hosted) -> None:
    adapter, engine = hosted
    engine.next(whole({"nonsense": True}))
    with pytest.raises(EngineError):
        await read_all(await adapter.send(hosted_call(stream=False)))

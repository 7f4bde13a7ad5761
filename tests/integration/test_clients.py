"""Three widely used clients, unmodified, against a whole gateway in front of a real llama.cpp."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from engines.llama import LlamaServer
from gateways import Gateway

pytestmark = pytest.mark.llamacpp

MODEL = "smollm2"
QUESTION: list[Any] = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Current weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


@pytest.fixture(scope="module")
def running(llamacpp: LlamaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    engines = [{"name": "real", "url": llamacpp.url, "models": {llamacpp.model: MODEL}}]
    started = Gateway(tmp_path_factory.mktemp("clients"), engines=engines)
    yield started
    started.stop()


@pytest.fixture
def client(running: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as made:
        yield made


# The official OpenAI client


def test_openai_lists_the_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_openai_gets_an_answer_and_its_usage(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Say hello."}], max_tokens=8, temperature=0, seed=1
    )
    assert answer.model == MODEL
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 8
    again = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Say hello."}], max_tokens=8, temperature=0, seed=1
    )
    assert again.choices[0].message.content == answer.choices[0].message.content


def test_openai_streams_the_same_text_as_it_gets_whole(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Count to five."}],
        "max_tokens": 16,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**options).choices[0].message.content
    with client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole
    assert chunks[-1].usage is not None
    assert {chunk.model for chunk in chunks} == {MODEL}


async def test_openai_async_streams_several_at_once(running: Gateway) -> None:
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:

        async def ask(number: int) -> str:
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": f"Name {number} animals."}],
                max_tokens=12,
                stream=True,
            )
            return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

        assert all(await asyncio.gather(*(ask(number) for number in range(1, 5))))


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
def test_openai_gets_a_tool_call_that_the_model_really_made(client: openai.OpenAI, stream: bool) -> None:
    options: dict[str, Any] = {
        "model": MODEL,
        "messages": QUESTION,
        "tools": TOOLS,
        "tool_choice": "required",
        "max_tokens": 64,
        "temperature": 0,
    }
    if stream:
        name, arguments, finish = "", "", None
        for chunk in client.chat.completions.create(**options, stream=True):
            for call in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
                assert call.function is not None
                name += call.function.name or ""
                arguments += call.function.arguments or ""
            finish = (chunk.choices[0].finish_reason if chunk.choices else None) or finish
    else:
        choice = client.chat.completions.create(**options).choices[0]
        assert choice.message.tool_calls
        name, arguments = choice.message.tool_calls[0].function.name, choice.message.tool_calls[0].function.arguments
        finish = choice.finish_reason
    assert name == "get_weather"
    assert "city" in json.loads(arguments)
    assert finish == "tool_calls"


def test_openai_gets_json_of_the_schema_that_it_asked_for(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Pick a colour."}],
        response_format={"type": "json_schema", "json_schema": {"name": "colour", "schema": schema, "strict": True}},
        max_tokens=32,
    )
    assert json.loads(answer.choices[0].message.content or "")["colour"] in ("red", "green")


def test_openai_gets_logprobs_and_completions(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Say hello."}],
        max_tokens=4,
        logprobs=True,
        top_logprobs=2,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content
    assert len(logprobs.content[0].top_logprobs) == 2
    completion = client.completions.create(model=MODEL, prompt="One, two, three,", max_tokens=6, temperature=0)
    assert "four" in completion.choices[0].text


def test_openai_raises_the_error_that_fits(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=MODEL):
        client.chat.completions.create(model="smolm2", messages=QUESTION)
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens="many")  # type: ignore[call-overload]
    with pytest.raises(openai.BadRequestError, match="2048"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "many words " * 4000}])
    with pytest.raises(openai.BadRequestError, match="embeddings"):
        client.embeddings.create(model=MODEL, input="text")


# litellm as a client


@pytest.mark.filterwarnings("ignore")  # its own, at import and at its end
def test_litellm_gets_an_answer_a_stream_and_a_tool_call(running: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it fetches a price list at import otherwise
    litellm = pytest.importorskip("litellm")
    options: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": f"{running.url}/v1", "api_key": "none"}
    messages = [{"role": "user", "content": "Say hello."}]
    whole = litellm.completion(**options, messages=messages, max_tokens=6)
    assert whole.choices[0].message.content
    stream = litellm.completion(**options, messages=messages, max_tokens=6, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    call = litellm.completion(**options, messages=QUESTION, tools=TOOLS, tool_choice="required", max_tokens=64)
    assert call.choices[0].message.tool_calls[0].function.name == "get_weather"
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**{**options, "model": "openai/nothing"}, messages=messages)


# langchain-openai


async def test_langchain_gets_an_answer_a_stream_and_a_tool_call(running: Gateway) -> None:
    langchain = pytest.importorskip("langchain_openai")
    chat = langchain.ChatOpenAI(
        model=MODEL, base_url=f"{running.url}/v1", api_key="none", max_tokens=48, temperature=0, max_retries=0
    )
    assert chat.invoke("Say hello.").content
    pieces = [piece.content async for piece in chat.astream("Say hello.")]
    assert len(pieces) > 1
    called = chat.bind_tools(TOOLS, tool_choice="required").invoke(QUESTION[0]["content"])
    assert called.tool_calls[0]["name"] == "get_weather"
    assert "city" in called.tool_calls[0]["args"]

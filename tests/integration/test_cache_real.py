"""A real llama.cpp, a real Valkey and the official OpenAI client: hits in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
import valkeys
from engines.llama import LlamaServer
from gateways import Gateway
from test_clients import MODEL, QUESTION, TOOLS

pytestmark = pytest.mark.llamacpp


@pytest.fixture(scope="module")
def running(llamacpp: LlamaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    if why := valkeys.available():
        pytest.skip(why)
    with valkeys.running() as server:
        engines = [{"name": "real", "url": llamacpp.url, "models": {llamacpp.model: MODEL}}]
        cache = {"url": server.url, "memory": 0, "lookup_ms": 2000}
        started = Gateway(tmp_path_factory.mktemp("cached"), engines=engines, cache=cache)
        started.wait_until_reached()
        yield started
        started.stop()


@pytest.fixture
def client(running: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def whole(client: openai.OpenAI, running: Gateway, **options: Any) -> tuple[str, Any]:
    """What the cache said, and the answer's choice and usage."""
    raw = client.chat.completions.with_raw_response.create(model=MODEL, **options)
    running.wait_until_kept()
    answer = raw.parse()
    return raw.headers["x-paceline-cache"], (answer.choices[0], answer.usage)


def streamed(client: openai.OpenAI, running: Gateway, **options: Any) -> tuple[str, list[Any]]:
    """What the cache said, and the chunks."""
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, stream=True, stream_options={"include_usage": True}, **options
    )
    chunks = list(raw.parse())
    running.wait_until_kept()
    return raw.headers["x-paceline-cache"], chunks


def test_streamed_then_plain(client: openai.OpenAI, running: Gateway) -> None:
    options: dict[str, Any] = {"messages": [{"role": "user", "content": "Count to six."}], "max_tokens": 16}
    first, chunks = streamed(client, running, **options)
    second, (choice, usage) = whole(client, running, **options)
    third, again = streamed(client, running, **options)
    assert (first, second, third) == ("miss", "hit", "hit")
    assert again == chunks
    assert choice.message.content == "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert usage == chunks[-1].usage


def test_plain_then_streamed(client: openai.OpenAI, running: Gateway) -> None:
    options: dict[str, Any] = {"messages": [{"role": "user", "content": "Name two seas."}], "max_tokens": 16}
    first, (choice, usage) = whole(client, running, **options)
    second, chunks = streamed(client, running, **options)
    assert (first, second) == ("miss", "hit")
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == choice.message.content
    assert chunks[-1].usage == usage
    assert len(chunks) > 3


@pytest.mark.parametrize("first", ["streamed", "plain"])
def test_a_tool_call(client: openai.OpenAI, running: Gateway, first: str) -> None:
    options: dict[str, Any] = {
        "messages": QUESTION,
        "tools": TOOLS,
        "tool_choice": "required",
        "max_tokens": 64,
        "temperature": 0,
        "seed": 1 if first == "streamed" else 2,
    }
    if first == "streamed":
        said, chunks = streamed(client, running, **options)
        again, (choice, _) = whole(client, running, **options)
    else:
        said, (choice, _) = whole(client, running, **options)
        again, chunks = streamed(client, running, **options)
    assert (said, again) == ("miss", "hit")
    pieces = [call for c in chunks if c.choices for call in c.choices[0].delta.tool_calls or []]
    [call] = choice.message.tool_calls
    assert call.function.name == "".join(piece.function.name or "" for piece in pieces)
    assert call.function.arguments == "".join(piece.function.arguments or "" for piece in pieces)
    assert choice.finish_reason == "tool_calls"

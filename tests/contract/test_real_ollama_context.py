"""A real Ollama: no prompt is cut, and the model is loaded again only when a request does not fit."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator

import pytest
from engines.answers import call, read_all

from adapters.base import Answer, Endpoint
from adapters.errors import Rejected
from adapters.ollama import OllamaAdapter
from adapters.transport import Transport

pytestmark = pytest.mark.ollama

PLACE = os.environ.get("PACELINE_TEST_OLLAMA", "").split()
SHORT = {"messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 2}
LONG = {"messages": [{"role": "user", "content": " ".join(f"word{i}" for i in range(160))}], "max_tokens": 2}
"""About 600 tokens."""


@pytest.fixture
def place() -> tuple[str, str]:
    if len(PLACE) != 2:
        pytest.skip("NO REAL OLLAMA: set PACELINE_TEST_OLLAMA to its address and its model's name")
    return PLACE[0], PLACE[1]


@pytest.fixture
async def small(place: tuple[str, str]) -> AsyncIterator[OllamaAdapter]:
    """An adapter whose model someone else has loaded with a context of 512."""
    url, model = place
    transport = Transport(url)
    body = {"model": model, "prompt": "x", "stream": False, "options": {"num_ctx": 512, "num_predict": 1}}
    await (await transport.request("POST", "/api/generate", body=json.dumps(body).encode())).read()
    await transport.aclose()
    adapter = OllamaAdapter(Endpoint("real", url))
    await adapter.describe()
    yield adapter
    await adapter.aclose()


async def asked(adapter: OllamaAdapter, model: str, fields: dict[str, object], prompt_tokens: int) -> Answer:
    answer = await adapter.send(call(fields, engine_model=model, prompt_tokens=prompt_tokens))
    await read_all(answer)
    return answer


async def test_a_resident_context_is_kept_and_a_larger_one_too(small: OllamaAdapter, place: tuple[str, str]) -> None:
    _, model = place
    kept = await asked(small, model, SHORT, 40)
    assert kept.outcome.load_s == 0.0
    grown = await asked(small, model, LONG, 700)
    assert grown.outcome.load_s
    assert grown.outcome.prompt_tokens is not None
    assert grown.outcome.prompt_tokens > 512
    again = await asked(small, model, SHORT, 40)
    assert again.outcome.load_s == 0.0


async def test_a_prompt_longer_than_thought_is_read_whole(small: OllamaAdapter, place: tuple[str, str]) -> None:
    answer = await asked(small, place[1], LONG, 50)
    assert answer.outcome.prompt_tokens is not None
    assert answer.outcome.prompt_tokens > 512


async def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(place: tuple[str, str]) -> None:
    url, model = place
    adapter = OllamaAdapter(Endpoint("real", url, options={"options": {"num_ctx": 512}}))
    await adapter.describe()
    with pytest.raises(Rejected, match=r"\d+ tokens.*512") as caught:
        await asked(adapter, model, LONG, 700)
    assert caught.value.code == "context_length_exceeded"
    await adapter.aclose()

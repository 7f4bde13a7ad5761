"""Whatever a request holds, in whichever place: where the gateway reads it, it goes on or is refused."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.base import Call
from adapters.errors import Rejected
from adapters.ollama.request import native_request
from cache.items import split
from cache.key import ItemKeys, Uncacheable, make_key
from cache.rules import Mode, is_cacheable
from gateway.errors import ApiError
from gateway.incoming import read_request
from policies.types import Operation
from tests.unit.odd import odd_bodies

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
MEDIA = [
    {"type": "text", "text": "what is this?"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa"}},
    {"type": "input_audio", "input_audio": {"data": "aaaa"}},
]
GENERATION: dict[str, Any] = {
    "model": "m",
    "max_tokens": 4,
    "temperature": 0.5,
    "seed": 1,
    "stop": ["x"],
    "n": 1,
    "stream": True,
    "stream_options": {"include_usage": True},
    "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
    "user": "u",
    "options": {"num_ctx": 5, "num_predict": 3},
    "top_logprobs": 2,
    "reasoning_effort": "low",
    "reasoning": {"effort": "low"},
}
BODIES: dict[Operation, dict[str, Any]] = {
    Operation.CHAT: GENERATION
    | {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": MEDIA},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "1", "name": "weather", "content": "sunny"},
        ],
        "max_completion_tokens": 3,
        "tools": [TOOL],
        "tool_choice": "auto",
        "logprobs": True,
    },
    Operation.COMPLETION: GENERATION | {"prompt": "p", "suffix": "s", "logprobs": 1, "echo": False, "best_of": 1},
    Operation.EMBEDDINGS: {"model": "m", "input": ["a", [1, 2]], "encoding_format": "base64", "dimensions": 8},
}


@pytest.mark.parametrize("operation", BODIES)
@settings(max_examples=300)
@given(data=st.data())
def test_a_request_with_anything_in_one_place_or_nothing_is_taken_or_refused(
    operation: Operation, data: st.DataObject
) -> None:
    try:
        incoming = read_request(operation, data.draw(odd_bodies(BODIES[operation])))
    except ApiError:
        return
    fields = incoming.body.fields
    is_cacheable(Mode.AUTO, operation, fields)
    with suppress(Uncacheable):
        make_key(operation, "m", "", fields)
    if operation is Operation.EMBEDDINGS:
        for item in split(fields["input"]) or ():
            with suppress(Uncacheable):
                ItemKeys(operation, "m", "", fields).of(item)
    assert incoming.body.encode({"model": "its own name"})
    call = Call(
        operation=operation,
        body=incoming.body,
        model="m",
        engine_model="m",
        stream=incoming.stream,
        include_usage=incoming.include_usage,
        prompt_tokens=3,
        max_output=incoming.max_output,
        context=100,
    )
    with suppress(Rejected):
        native_request(call, {}).encode(100)

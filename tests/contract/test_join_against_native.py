"""llama.cpp is always asked for a stream: what we join out of it is what it would have answered itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from engines.llama import LlamaServer
from engines.subject import ASKED_NAME, Subject

from adapters.base import Endpoint
from adapters.llamacpp import LlamaCppAdapter
from adapters.transport import Transport
from policies.types import Operation

pytestmark = pytest.mark.llamacpp

QUESTION = {"messages": [{"role": "user", "content": "What time is it in Paris?"}], "max_tokens": 60}
TOOL = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris"]}}}},
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes"]}}}
CASES: dict[str, tuple[Operation, dict[str, Any]]] = {
    "text": (Operation.CHAT, {**QUESTION, "max_tokens": 12}),
    "stop": (Operation.CHAT, {**QUESTION, "stop": ["a"]}),
    "logprobs": (Operation.CHAT, {**QUESTION, "max_tokens": 4, "logprobs": True, "top_logprobs": 2}),
    "a tool call": (Operation.CHAT, {**QUESTION, "tools": [TOOL], "tool_choice": "required"}),
    "json": (Operation.CHAT, {**QUESTION, "response_format": SCHEMA}),
    "completion": (Operation.COMPLETION, {"prompt": "The sky is", "max_tokens": 6}),
    "completion with logprobs": (Operation.COMPLETION, {"prompt": "The sky is", "max_tokens": 4, "logprobs": 2}),
}
PATHS = {Operation.CHAT: "/v1/chat/completions", Operation.COMPLETION: "/v1/completions"}


@pytest.mark.parametrize("name", CASES)
async def test_the_joined_body_is_the_native_one(llamacpp: LlamaServer, name: str) -> None:
    operation, fields = CASES[name]
    body = {**fields, "model": llamacpp.model, "temperature": 0, "seed": 3}
    subject = Subject(LlamaCppAdapter(Endpoint("llama", llamacpp.url)), llamacpp.model)
    transport = Transport(llamacpp.url)
    try:
        await subject.whole(body, operation=operation)  # the same prefix cache for both
        joined, _ = await subject.whole(body, operation=operation)
        response = await transport.request("POST", PATHS[operation], body=json.dumps(body).encode())
        native = json.loads(await response.read())
    finally:
        await subject.adapter.aclose()
        await transport.aclose()
    assert joined["model"] == ASKED_NAME
    assert comparable(joined) == comparable(native)


def comparable(body: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from one answer to the next: names of answers and calls, times, and the cache's share."""
    kept = {key: value for key, value in body.items() if key not in ("id", "created", "timings", "model")}
    kept["usage"] = {key: value for key, value in body["usage"].items() if key != "prompt_tokens_details"}
    for choice in kept["choices"]:
        message = choice.get("message", {})
        for call in message.get("tool_calls") or ():
            assert call.pop("id")
            message["content"] = message["content"] or None  # where OpenAI says null, llama.cpp says ""
    return kept

"""Tool calls: name, arguments, index, id and finish reason survive the way, streamed and whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from engines import scripts
from engines.subject import Subject

from policies.types import Capability

TOOL = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "time in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris"]}},
            "required": ["city"],
        },
    },
}
QUESTION = {
    "messages": [{"role": "user", "content": "What time is it in Paris?"}],
    "tools": [TOOL],
    "max_tokens": 80,
    "temperature": 0,
    "seed": 1,
}


async def forced(subject: Subject) -> dict[str, Any]:
    """The question, asked so that even a tiny model makes a real call."""
    if subject.adapter.kind == "ollama":  # it has no tool_choice: a schema that allows only this call
        call = {"name": {"enum": ["get_time"]}, "parameters": TOOL["function"]["parameters"]}  # type: ignore[index]
        schema = {"type": "object", "properties": call, "required": ["name", "parameters"]}
        needed = Capability.TOOLS
        how: dict[str, Any] = {
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        }
    else:
        needed, how = Capability.TOOL_CHOICE, {"tool_choice": "required"}
    if not await subject.can(needed):
        pytest.skip("this engine does not say that it can be made to call a tool")
    return {**QUESTION, **how}


async def test_a_real_call_comes_whole(real: Subject) -> None:
    body, answer = await real.whole(await forced(real))
    (choice,) = body["choices"]
    assert choice["finish_reason"] == answer.outcome.finish_reason == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["id"]
    assert call["function"]["name"] == "get_time"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    assert not choice["message"]["content"]
    assert "index" not in call


async def test_a_real_call_comes_streamed(real: Subject) -> None:
    events, answer = await real.stream(await forced(real))
    pieces = [p for e in events[:-1] for c in e["choices"] for p in c["delta"].get("tool_calls") or ()]
    assert {piece["index"] for piece in pieces} == {0}
    assert pieces[0]["id"]
    assert pieces[0]["function"]["name"] == "get_time"
    assert json.loads("".join(piece["function"].get("arguments") or "" for piece in pieces)) == {"city": "Paris"}
    assert answer.outcome.finish_reason == "tool_calls"
    assert answer.outcome.first_token_at is not None


async def test_a_tools_result_is_understood(real: Subject) -> None:
    if not await real.can(Capability.TOOLS):
        pytest.skip("this engine has no tools")
    call = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": '{"city":"Paris"}'}}
    messages = [
        *QUESTION["messages"],  # type: ignore[misc]
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "10:30"},
    ]
    body, _ = await real.whole({**QUESTION, "messages": messages, "max_tokens": 8})
    assert body["choices"][0]["finish_reason"] in ("stop", "length", "tool_calls")


async def test_two_calls_in_small_pieces_are_put_together(played: Subject) -> None:
    assert played.scripted is not None
    if played.adapter.kind == "ollama":
        pytest.skip("its calls come whole")
    deltas: list[dict[str, Any]] = []
    for index, city in enumerate(["Paris", "Rome"]):
        head = {"index": index, "id": f"call_{index}", "type": "function"}
        deltas.append({"tool_calls": [{**head, "function": {"name": "get_time", "arguments": ""}}]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": a}}]} for a in ('{"ci', f'ty":"{city}"}}')
        ]
    played.scripted.always(scripts.chat(deltas, finish="tool_calls"))
    events, answer = await played.stream(QUESTION)
    assert [e["choices"][0]["delta"] for e in events[:-1] if "tool_calls" in e["choices"][0]["delta"]] == deltas
    assert answer.outcome.finish_reason == "tool_calls"
    if not played.adapter.always_stream:
        pytest.skip("a whole answer of this engine is its own, not joined")
    body, _ = await played.whole(QUESTION)
    message = body["choices"][0]["message"]
    assert message["content"] is None
    assert [call["id"] for call in message["tool_calls"]] == ["call_0", "call_1"]
    assert [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]] == [
        {"city": "Paris"},
        {"city": "Rome"},
    ]

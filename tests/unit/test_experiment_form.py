from __future__ import annotations

from typing import Any

import msgspec
import pytest

from adapters.body import Body
from gateway.experiments.form import fault_of
from policies.types import Operation

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
AS_SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}}
TOOLS = {"tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]}


def body(**more: Any) -> Body:
    return Body.parse(msgspec.json.encode({"model": "m", "messages": [], **more}))


def answer(content: str | None = None, finish: str = "stop", **message: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}
    return msgspec.json.encode({"object": "chat.completion", "choices": [choice]})


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("asked", "said", "fault"),
    [
        ({}, answer("Fine."), ""),
        ({}, answer(""), "is empty"),
        ({}, answer("over and over " * 20), "repeats itself over and over"),
        (AS_SCHEMA, answer('{"x": 1}'), ""),
        (AS_SCHEMA, answer("no"), "is not JSON"),
        (AS_SCHEMA, answer('{"x": ', "length"), ""),
        (TOOLS, answer(**call("f", '{"x": 1}')), ""),
        (TOOLS, answer(**call("g", "{}")), "calls 'g', which there is not"),
    ],
)
def test_an_answer_has_the_form_that_was_asked_for_or_it_is_said_what_is_wrong(
    asked: dict[str, Any], said: bytes, fault: str
) -> None:
    assert fault_of(Operation.CHAT, body(**asked), said) == fault


def test_arguments_that_a_tool_does_not_take_are_a_fault() -> None:
    fault = fault_of(Operation.CHAT, body(**TOOLS), answer(**call("f", '{"x": "one"}')))
    assert fault is not None
    assert fault.startswith("calls f with arguments that will not do")


def test_half_an_answer_says_nothing() -> None:
    assert fault_of(Operation.CHAT, body(), answer("Fine.")[:20]) is None

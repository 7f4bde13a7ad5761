"""Kept answers in the other form: nothing is lost on the way there and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.replay import joined, parted, renamed, without_usage
from policies.types import Operation

texts = st.text(max_size=20)
calls = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.uuids().map(str),
            "type": st.just("function"),
            "function": st.fixed_dictionaries({"name": texts.filter(bool), "arguments": texts}),
        }
    ),
    max_size=3,
    unique_by=lambda call: call["id"],
)


def message(content: str, reasoning: str, tool_calls: list[Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"role": "assistant", "content": content or None if tool_calls else content}
    if reasoning:
        made["reasoning_content"] = reasoning
    return made | ({"tool_calls": tool_calls} if tool_calls else {})


messages = st.builds(message, texts, texts, calls)


def body(choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> dict[str, Any]:
    logprobs = {"content": [{"token": "a", "logprob": -0.5}]}
    listed = [
        {"index": i, "message": each, "logprobs": logprobs, "finish_reason": "stop"} for i, each in enumerate(choices)
    ]
    made: dict[str, Any] = {"id": "1", "object": "chat.completion", "created": 5, "model": "m", "choices": listed}
    return made | ({"usage": usage} if usage else {})


@given(st.lists(messages, min_size=1, max_size=3), st.none() | st.just({"prompt_tokens": 3, "completion_tokens": 4}))
def test_a_body_that_becomes_a_stream_and_a_body_again_is_the_same(
    choices: list[dict[str, Any]], usage: dict[str, int] | None
) -> None:
    whole = body(choices, usage)
    assert json.loads(joined(parted(json.dumps(whole).encode(), Operation.CHAT), Operation.CHAT)) == whole


def test_a_completion_as_well() -> None:
    whole = {
        "object": "text_completion",
        "model": "m",
        "choices": [{"index": 0, "text": "hi", "finish_reason": "stop"}],
    }
    again = joined(parted(json.dumps(whole).encode(), Operation.COMPLETION), Operation.COMPLETION)
    assert json.loads(again) == whole


@given(texts)
def test_a_text_that_looks_like_a_usage_or_a_model_stays(text: str) -> None:
    tricky = f'"usage":{{"model":"m"}} {text}'
    stream = parted(json.dumps(body([message(tricky, "", [])], {"prompt_tokens": 1})).encode(), Operation.CHAT)
    shown = json.loads(joined(without_usage(renamed(stream, "m", "asked")), Operation.CHAT))
    assert shown["choices"][0]["message"]["content"] == tricky
    assert shown["model"] == "asked"
    assert "usage" not in shown


@pytest.mark.parametrize("space", ["", " "])
def test_a_usage_beside_a_choice_goes_alone(space: str) -> None:
    usage = f'"usage":{space}{{"prompt_tokens":1}}'
    events = (
        'data: {"choices":[{"index":0,"delta":{"content":"a"}}],"usage":null}\n\n'
        f'data: {{"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}],{usage}}}\n\n'
        f'data: {{"choices":[],{usage}}}\n\ndata: [DONE]\n\n'
    ).encode()
    left = without_usage(events).decode().strip().split("\n\n")
    assert len(left) == 3
    assert left[0].endswith('"usage":null}')
    assert "usage" not in left[1]
    assert '"finish_reason":"stop"' in left[1]


def test_without_a_usage_nothing_is_touched() -> None:
    events = b'data: {"choices":[]}\n\n: a comment\n\ndata: [DONE]\n\n'
    assert without_usage(events) is events

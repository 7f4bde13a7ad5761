"""Whatever a body holds, in whichever place: it is read, or refused as the caller's fault, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from asking import fields, language
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvalidRequest
from engine.fields import Fields
from engine.protocol import Language, read_chat, read_completion, read_embedding, read_text, read_tokens
from tests.unit.odd import odd_bodies

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
SAMPLING: dict[str, Any] = {
    "max_tokens": 4,
    "temperature": 0.5,
    "top_k": 3,
    "logit_bias": {"5": 1},
    "seed": 1,
    "stop": ["x"],
    "stop_token_ids": [3],
    "min_tokens": 1,
    "n": 1,
    "best_of": 1,
    "priority": 1,
    "stream": True,
    "stream_options": {"include_usage": True},
    "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
}
CHAT: dict[str, Any] = SAMPLING | {
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "name": "weather", "content": "sunny"},
    ],
    "max_completion_tokens": 4,
    "tools": [TOOL],
    "tool_choice": {"type": "function", "function": {"name": "weather"}},
    "parallel_tool_calls": False,
    "logprobs": True,
    "top_logprobs": 2,
    "chat_template_kwargs": {"enable_thinking": False},
}
OF_TOOLS = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c }}{% endfor %}{% endfor %}{{ tools }}"
)
LANGUAGES = {
    "knows tools": language(OF_TOOLS),
    "knows none": language("{% for m in messages %}{{ m.content }}{% endfor %}"),
}
BODIES: dict[str, tuple[Callable[[Fields, Language], object], dict[str, Any]]] = {
    "chat": (read_chat, CHAT),
    "completion": (read_completion, SAMPLING | {"prompt": ["a", [1, 2]], "logprobs": 1}),
    "embedding": (read_embedding, {"input": ["a", [1, 2]], "encoding_format": "base64", "dimensions": 8}),
    "tokenize": (read_text, {"messages": CHAT["messages"], "tools": [TOOL], "prompt": "p", "add_special_tokens": True}),
    "detokenize": (read_tokens, {"tokens": [1, 2]}),
}


@pytest.mark.parametrize("templates", LANGUAGES)
@pytest.mark.parametrize("kind", BODIES)
@settings(max_examples=200)
@given(data=st.data())
def test_a_body_with_anything_in_one_place_or_nothing_is_read_or_refused(
    kind: str, templates: str, data: st.DataObject
) -> None:
    read, body = BODIES[kind]
    with suppress(InvalidRequest):
        read(Fields.decode(data.draw(odd_bodies(body))), LANGUAGES[templates])


@pytest.mark.parametrize("kind", BODIES)
def test_the_bodies_themselves_are_read(kind: str) -> None:
    read, body = BODIES[kind]
    assert read(fields(body), LANGUAGES["knows none"])

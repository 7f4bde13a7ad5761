"""When every deployment that was tried has failed, the client gets one answer that names each and says what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engines.scripted import ScriptedEngine
from engines.scripts import Script, drop, status, whole
from gateways import Gateway, chat_body, engine_at

TOO_LONG = status(
    400,
    {
        "error": {
            "code": 400,
            "message": "the request exceeds the available context size",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 3000,
            "n_ctx": 2048,
        }
    },
)
BUSY = status(429, headers={"retry-after": "9"})
BROKEN = drop(b"HTTP/1.1 200")
NONSENSE = whole({"no": "answer"}, 500)


@pytest.mark.parametrize(
    ("first", "second", "code", "error_code"),
    [
        (TOO_LONG, TOO_LONG, 400, "context_length_exceeded"),
        (BUSY, BROKEN, 429, "engine_busy"),
        (BROKEN, BUSY, 429, "engine_busy"),
        (TOO_LONG, BUSY, 429, "engine_busy"),
        (BROKEN, NONSENSE, 502, "engine_failed"),
        (TOO_LONG, BROKEN, 502, "engine_failed"),
    ],
    ids=["both refuse", "busy, broken", "broken, busy", "refuses, busy", "both broken", "refuses, broken"],
)
async def test_one_answer_names_each_and_prefers_what_will_pass(
    scripted: Callable[..., ScriptedEngine],
    gateway: Callable[..., Gateway],
    first: Script,
    second: Script,
    code: int,
    error_code: str,
) -> None:
    engines = scripted(kind="llamacpp"), scripted(kind="llamacpp")
    for engine, script in zip(engines, (first, second), strict=True):
        engine.always(script)
    running = gateway(engines=[engine_at(engines[0], "a"), engine_at(engines[1], "b")])
    async with running.client() as client:
        answer = await client.post("/v1/chat/completions", json=chat_body())
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (code, error_code)
    assert "a: " in error["message"]
    assert "b: " in error["message"]
    assert answer.headers.get("retry-after") == ("9" if code == 429 else None)
    assert (len(engines[0].requests), len(engines[1].requests)) == (1, 1)

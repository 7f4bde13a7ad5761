"""Reads an adapter's answers in tests."""

from __future__ import annotations

import json
from typing import Any

from adapters.base import Answer, Call
from adapters.body import Body
from policies.types import Operation

CHAT_BODY = {"model": "asked-for", "messages": [{"role": "user", "content": "Say hi."}]}


def call(body: dict[str, Any] | None = None, *, engine_model: str = "engine-model", **given: Any) -> Call:
    """A call as the gateway makes it; ``operation``, ``stream`` and the rest may be given."""
    fields = CHAT_BODY if body is None else {"model": "asked-for", **body}
    usual: dict[str, Any] = {
        "operation": Operation.CHAT,
        "stream": True,
        "include_usage": False,
        "prompt_tokens": 12,
        "max_output": fields.get("max_tokens"),
    }
    return Call(
        body=Body.parse(json.dumps(fields).encode()), model="asked-for", engine_model=engine_model, **{**usual, **given}
    )


async def read_all(answer: Answer) -> bytes:
    """Everything that goes to the client."""
    pieces = []
    while (piece := await answer.read()) is not None:
        pieces.append(piece)
    return b"".join(pieces)


def events(stream: bytes) -> list[dict[str, Any]]:
    """The JSON of each event but the ``[DONE]``, which must be the last."""
    data = [event.removeprefix("data: ") for event in stream.decode().split("\n\n") if event.startswith("data: ")]
    assert data[-1] == "[DONE]", data
    return [json.loads(item) for item in data[:-1]]


def text_of(chunks: list[dict[str, Any]], field: str = "content") -> str:
    """The text of all chunks: of their deltas, or of a completion's ``text``."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join((choice["text"] if "text" in choice else choice["delta"].get(field)) or "" for choice in choices)

"""One line of Ollama's NDJSON streams, decoded no further than needed."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from adapters.heard import duration_in

EMPTY: Final = b'""'
_NANOSECONDS: Final = 1e-9


class Function(msgspec.Struct, gc=False):
    name: str = ""
    arguments: Raw = Raw(b"{}")


class ToolCall(msgspec.Struct, gc=False):
    function: Function
    id: str = ""


class TopLogprob(msgspec.Struct, gc=False):
    token: str
    logprob: float
    bytes: list[int] | None = None


class Logprob(msgspec.Struct, gc=False):
    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[TopLogprob] = msgspec.field(default_factory=list)


class Message(msgspec.Struct, gc=False):
    """``content`` and ``thinking`` are JSON strings as they came: they go to the client undecoded."""

    content: Raw = Raw(EMPTY)
    thinking: Raw = Raw(EMPTY)
    tool_calls: list[ToolCall] | None = None


class Line(msgspec.Struct, gc=False):
    """A line of /api/chat (``message``) or /api/generate (``response``). Durations are nanoseconds."""

    message: Message | None = None
    response: Raw = Raw(EMPTY)
    logprobs: list[Logprob] | None = None
    done: bool = False
    done_reason: str = ""
    error: Raw = Raw(b"")
    load_duration: int = 0
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None

    @property
    def load_s(self) -> float:
        return _seconds(self.load_duration) or 0.0

    @property
    def prefill_s(self) -> float | None:
        return _seconds(self.prompt_eval_duration)

    @property
    def decode_s(self) -> float | None:
        return _seconds(self.eval_duration)


def _seconds(nanoseconds: int | None) -> float | None:
    duration = duration_in(nanoseconds)
    return None if duration is None else duration * _NANOSECONDS


decode_line = msgspec.json.Decoder(Line).decode

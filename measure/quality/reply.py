"""What a deployment answered to one prompt of the suite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asked for; ``arguments`` is the JSON text as it came."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Token:
    """One token with its natural log-probability, and those of its rivals at that place, by their bytes."""

    piece: bytes
    logprob: float
    rivals: Mapping[bytes, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, whole. ``tokens`` is empty where the engine gives no log-probabilities.

    ``finish`` is OpenAI's ``finish_reason``; ``failed`` says why there is no answer, and then all else is empty.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    tokens: tuple[Token, ...] = ()
    finish: str = ""
    prompt_tokens: int | None = None
    failed: str = ""

    @property
    def written(self) -> str:
        """All that the model wrote, in one text that two replies can be compared by."""
        calls = "".join(f"{call.name}({call.arguments})" for call in self.calls)
        return self.reasoning + self.text + calls

    @property
    def was_cut(self) -> bool:
        """Whether it ran into the prompt's limit instead of coming to an end."""
        return self.finish == "length"


def read_reply(body: Mapping[str, Any], prompt_tokens: int | None) -> Reply:
    """Read a ``chat.completion`` in OpenAI's form; what is not there, or not as it should be, is left empty."""
    choice = _first(body.get("choices"))
    message = _object(choice.get("message"))
    return Reply(
        text=_text(message.get("content")),
        reasoning=_text(message.get("reasoning_content")) or _text(message.get("reasoning")),
        calls=tuple(_call(_object(each).get("function")) for each in _list(message.get("tool_calls"))),
        tokens=_tokens(_list(_object(choice.get("logprobs")).get("content"))),
        finish=_text(choice.get("finish_reason")),
        prompt_tokens=prompt_tokens,
    )


def _call(function: object) -> ToolCall:
    named = _object(function)
    return ToolCall(_text(named.get("name")), _text(named.get("arguments")))


def _tokens(entries: list[Any]) -> tuple[Token, ...]:
    """The tokens with what they were chosen from; none at all when one of them has no usable probability."""
    tokens = []
    for entry in map(_object, entries):
        logprob = _logprob(entry)
        if logprob is None:
            return ()
        rivals = {
            _piece(rival): value
            for rival in map(_object, _list(entry.get("top_logprobs")))
            if (value := _logprob(rival)) is not None
        }
        tokens.append(Token(_piece(entry), logprob, rivals))
    return tuple(tokens)


def _logprob(entry: Mapping[str, Any]) -> float | None:
    value = entry.get("logprob")
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value)


def _piece(entry: Mapping[str, Any]) -> bytes:
    """The token's bytes: its text may be half a character."""
    raw = entry.get("bytes")
    if isinstance(raw, list) and all(isinstance(each, int) and 0 <= each < 256 for each in raw):
        return bytes(raw)
    return _text(entry.get("token")).encode()


def _first(value: object) -> Mapping[str, Any]:
    return _object(value[0]) if isinstance(value, list) and value else {}


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""

"""Prompts and answers for a trace, where an operator wants them: what must not be shown taken out, and not too much."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from adapters.heard import NOT_JSON, object_in
from adapters.join import Misshapen
from gateway.redaction import HIDDEN, redact
from gateway.replay import joined
from gateway.telemetry.span import Kind, Span
from policies.types import Operation

TOO_LONG: Final = "(too long to be recorded)"
MISSHAPEN: Final = "(not of the shape that OpenAI's protocol has)"


class Patterns:
    """Hides secrets, and whatever an operator's expressions match."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]

    def __call__(self, text: str) -> str:
        """Return ``text`` without them."""
        text = redact(text)
        for pattern in self._patterns:
            text = pattern.sub(HIDDEN, text)
        return text


class Content:
    """One request's prompt and answer as they went over the wire, at most ``limit`` characters of each."""

    __slots__ = ("_answer", "_hide", "_limit", "_operation", "_prompt", "_streamed")

    def __init__(
        self, operation: Operation, prompt: bytes, answer: bytes, hide: Patterns, limit: int, *, streamed: bool
    ) -> None:
        self._operation = operation
        self._prompt = prompt
        self._answer = answer
        self._hide = hide
        self._limit = limit
        self._streamed = streamed

    def write(self, spans: Sequence[Span]) -> None:
        """Write them into the last call to an engine, or into the request's own span where there was none."""
        calls = [span for span in spans if span.kind is Kind.CLIENT]
        attributes = (calls[-1] if calls else spans[0]).attributes
        attributes["gen_ai.input.messages"] = self._encode(self._asked())
        if self._operation is not Operation.EMBEDDINGS and self._answer:
            attributes["gen_ai.output.messages"] = self._encode(self._answered())

    def _encode(self, messages: list[dict[str, Any]]) -> str:
        left = self._limit
        for message in messages:
            for part in message["parts"]:
                text = self._hide(part.get("content", ""))
                part["content"], left = text[:left], max(0, left - len(text))
        return msgspec.json.encode(messages).decode()

    def _asked(self) -> list[dict[str, Any]]:
        asked = _decoded(self._prompt)
        if self._operation is Operation.CHAT and isinstance(asked, list):
            return [_message(each) for each in asked if isinstance(each, dict)]
        texts = asked if isinstance(asked, list) else [asked]
        return [{"role": "user", "parts": [_text(each)]} for each in texts]

    def _answered(self) -> list[dict[str, Any]]:
        answer = self._answer
        if self._streamed:
            try:
                answer = joined(answer[: answer.rfind(b"\n\n") + 2], self._operation)
            except Misshapen:
                return [{"role": "assistant", "parts": [_text(MISSHAPEN)]}]
        body = _decoded(answer)
        choices = body.get("choices") if isinstance(body, dict) else None
        if not isinstance(choices, list):
            return [{"role": "assistant", "parts": [_text(body)]}]
        messages = []
        for choice in map(object_in, choices):
            message = object_in(choice.get("message")) or {"role": "assistant", "content": choice.get("text")}
            messages.append({**_message(message), "finish_reason": choice.get("finish_reason")})
        return messages


def _decoded(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except NOT_JSON:
        return TOO_LONG  # it was cut, and is not shown as it is: what has to be hidden may be escaped in it


def _message(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    told = [_text(each) for each in parts if each is not None]
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        told.append({"type": "tool_call", "content": msgspec.json.encode(call).decode()})
    return {"role": str(message.get("role", "")), "parts": told}


def _text(part: Any) -> dict[str, Any]:
    """A piece of text; of an image or a sound only that there was one."""
    if isinstance(part, dict):
        kind = str(part.get("type", ""))
        return {"type": kind, "content": str(part["text"])} if "text" in part else {"type": kind, "content": ""}
    return {"type": "text", "content": str(part)}

"""Joins the events of an OpenAI stream into the one body that a client gets which does not stream."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from adapters.heard import NOT_JSON
from adapters.sse import event_data, split_events
from policies.types import Operation

_SAID_ONCE = frozenset({"role", "id", "type", "name", "index"})
"""Texts that engines send once, or repeat whole: never concatenated."""

_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


class Misshapen(ValueError):
    """An answer has a shape that OpenAI's protocol does not have."""

    def __init__(self) -> None:
        super().__init__("an event of a shape that OpenAI's protocol does not have")


ODD: Final = (TypeError, AttributeError, KeyError, *NOT_JSON)
"""What taking an answer for one of that shape raises where it is not."""


class Join:
    """Add the events in order, then take ``body``. Both raise ``Misshapen``.

    Texts of a delta are concatenated, lists extended, tool calls joined by their index; of anything else the last value
    counts, as it does at the top level (usage, timings, …). Unknown fields are kept by the same rules.
    """

    def __init__(self, operation: Operation) -> None:
        self._chat = operation is Operation.CHAT
        self._top: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    def add(self, events: bytes) -> None:
        """Add a blob of whole server-sent events."""
        try:
            for event in split_events(events):
                data = event_data(event)
                if data and data != b"[DONE]":
                    self._add_chunk(_decode(data))
        except ODD as error:
            raise Misshapen from error

    def body(self) -> dict[str, Any]:
        """The whole answer."""
        kind = "chat.completion" if self._chat else "text_completion"
        try:
            choices = [self._choice(self._choices[index]) for index in sorted(self._choices)]
        except ODD as error:
            raise Misshapen from error
        return {**self._top, "object": kind, "choices": choices}

    def _add_chunk(self, chunk: dict[str, Any]) -> None:
        for name, value in chunk.items():
            if name != "choices" and (value is not None or name not in self._top):
                self._top[name] = value
        for piece in chunk.get("choices") or ():
            index = piece.get("index", 0)
            self._add_choice(self._choices.setdefault(index, {"index": index}), piece)

    def _add_choice(self, choice: dict[str, Any], piece: dict[str, Any]) -> None:
        for name, value in piece.items():
            if name == "delta":
                _merge(choice.setdefault("message", {}), value or {})
            elif name == "text":
                choice["text"] = choice.get("text", "") + (value or "")
            elif name == "logprobs" and isinstance(value, dict):
                choice["logprobs"] = choice.get("logprobs") or {}
                _merge(choice["logprobs"], value)
            elif value is not None or name not in choice:
                choice[name] = value

    def _choice(self, choice: dict[str, Any]) -> dict[str, Any]:
        if not self._chat:
            return {"text": "", **choice}
        message = {"role": "assistant", "content": None, **choice.get("message", {})}
        calls = message.get("tool_calls")
        if calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = [{k: v for k, v in call.items() if k != "index"} for call in calls]
        elif message["content"] is None:
            message["content"] = ""
        return {**choice, "message": message}


def _merge(into: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        present = into.get(name)
        if name == "tool_calls":
            _merge_calls(into.setdefault(name, []), value or [])
        elif value is None:
            into.setdefault(name, None)
        elif present is None:
            into[name] = dict(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else value
        elif isinstance(value, str) and isinstance(present, str):
            into[name] = (present or value) if name in _SAID_ONCE else present + value
        elif isinstance(value, list) and isinstance(present, list):
            present.extend(value)
        elif isinstance(value, dict) and isinstance(present, dict):
            _merge(present, value)
        else:
            into[name] = value


def _merge_calls(calls: list[dict[str, Any]], pieces: list[dict[str, Any]]) -> None:
    for piece in pieces:
        _merge(_call_of(calls, piece), piece)


def _call_of(calls: list[dict[str, Any]], piece: dict[str, Any]) -> dict[str, Any]:
    """The call that a piece belongs to. Engines that send no index send whole calls, each with its own id."""
    index = piece.get("index")
    for call in calls:
        if (call.get("index") == index) if index is not None else (call.get("id") == piece.get("id")):
            return call
    calls.append({})
    return calls[-1]

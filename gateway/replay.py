"""A kept answer in the form that is wanted now: as a stream or as one body, under the name that was asked for."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from adapters.heard import NOT_JSON
from adapters.join import ODD, Join, Misshapen
from adapters.sse import event_data, split_events
from cache.entry import Entry
from policies.types import Operation

_DONE: Final = b"data: [DONE]\n\n"
_USAGE: Final = (b'"usage":{', b'"usage": {')
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
_decode_raw: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def as_body(entry: Entry, operation: Operation, model: str) -> bytes:
    """Return an entry as one JSON body. Takes time where that has not been done for it before."""
    return renamed(entry.whole or (joined(entry.body, operation) if entry.streamed else entry.body), entry.model, model)


def as_events(entry: Entry, operation: Operation, model: str, *, usage: bool) -> bytes:
    """Return an entry as server-sent events, with a usage only for those who want one."""
    events = entry.body if entry.streamed else parted(entry.body, operation)
    events = renamed(events, entry.model, model)
    return events if usage else without_usage(events)


def joined(events: bytes, operation: Operation) -> bytes:
    """Return the body that a whole stream becomes. Raises ``Misshapen``."""
    join = Join(operation)
    join.add(events)
    return msgspec.json.encode(join.body())


def parted(body: bytes, operation: Operation) -> bytes:
    """Return the shortest stream that says what a body says: the output, the finish, the usage.

    Raises ``Misshapen``.
    """
    try:
        return _parted(body, operation)
    except ODD as error:
        raise Misshapen from error


def _parted(body: bytes, operation: Operation) -> bytes:
    fields = _decode(body)
    usage = fields.pop("usage", None)
    choices = fields.pop("choices", [])
    is_chat = operation is Operation.CHAT
    if is_chat:
        fields["object"] = "chat.completion.chunk"
    events = [{**fields, "choices": [_output(choice, is_chat=is_chat)]} for choice in choices]
    events += [{**fields, "choices": [_finish(choice, is_chat=is_chat)]} for choice in choices]
    if usage is not None:
        events.append({**fields, "choices": [], "usage": usage})
    return b"".join(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events) + _DONE


def _output(choice: dict[str, Any], *, is_chat: bool) -> dict[str, Any]:
    output = {**choice, "finish_reason": None}
    if is_chat:
        message = output.pop("message", {})
        calls = message.get("tool_calls")
        if calls:
            message = {**message, "tool_calls": [{"index": i, **call} for i, call in enumerate(calls)]}
        output["delta"] = message
    return output


def _finish(choice: dict[str, Any], *, is_chat: bool) -> dict[str, Any]:
    empty: dict[str, Any] = {"delta": {}} if is_chat else {"text": ""}
    return {"index": choice.get("index", 0), **empty, "finish_reason": choice.get("finish_reason")}


def renamed(data: bytes, kept: str, asked: str) -> bytes:
    """Put the name that was asked for in the place of the one that was asked for when the answer was made."""
    if kept == asked:
        return data
    old, new = msgspec.json.encode(kept), msgspec.json.encode(asked)
    for space in (b"", b" "):
        data = data.replace(b'"model":' + space + old, b'"model":' + space + new)
    return data


def without_usage(events: bytes) -> bytes:
    """Take the usage out of a blob of whole events: the event that has nothing else goes.

    In JSON a quote inside of a text is escaped, so that no text can look like a usage.
    """
    found = [at for mark in _USAGE if (at := events.find(mark)) >= 0]
    if not found:
        return events
    start = events.rfind(b"\n\n", 0, min(found)) + 2 if b"\n\n" in events[: min(found)] else 0
    return events[:start] + b"".join(_without_usage(event) for event in split_events(events[start:]))


def _without_usage(event: bytes) -> bytes:
    data = event_data(event)
    if data is None or data == b"[DONE]" or not any(mark in event for mark in _USAGE):
        return event
    try:
        fields = _decode_raw(data)
    except NOT_JSON:
        return event
    fields.pop("usage", None)
    if bytes(fields.get("choices", msgspec.Raw(b"[]"))).strip() == b"[]":
        return b""
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"

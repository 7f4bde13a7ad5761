"""Server-sent events in OpenAI's form, put together from the pieces of Ollama's lines as bytes."""

from __future__ import annotations

import time
import uuid
from typing import Final

import msgspec

from adapters.base import Call
from adapters.ollama.line import EMPTY, Logprob, ToolCall
from policies.types import Operation

DONE: Final = b"data: [DONE]\n\n"

_encode = msgspec.json.encode


class ChatEvents:
    """The events of one chat answer."""

    def __init__(self, call: Call) -> None:
        self.id = f"chatcmpl-{uuid.uuid4().hex}"
        self._head = _head(call, self.id, "chat.completion.chunk")
        self._role = b'"role":"assistant",'
        self._calls = 0

    def text(self, content: bytes, thinking: bytes, logprobs: list[Logprob] | None) -> bytes:
        """A piece of the answer or of the reasoning; both are JSON strings."""
        delta = b'"content":' + content
        if thinking != EMPTY:
            delta = b'"reasoning_content":' + thinking + (b"," + delta if content != EMPTY else b"")
        tail = b'},"finish_reason":null}]}\n\n'
        if logprobs:
            tail = b'},"logprobs":{"content":' + _encode(logprobs) + b'},"finish_reason":null}]}\n\n'
        return self._delta(delta) + tail

    def tool_calls(self, calls: list[ToolCall]) -> bytes:
        """Whole calls: arguments become a string, each call gets an index and an id that no other has."""
        written = []
        for call in calls:
            function = {"name": call.function.name, "arguments": bytes(call.function.arguments).decode()}
            identifier = call.id or f"call_{uuid.uuid4().hex[:24]}"
            written.append({"index": self._calls, "id": identifier, "type": "function", "function": function})
            self._calls += 1
        return self._delta(b'"tool_calls":' + _encode(written)) + b'},"finish_reason":null}]}\n\n'

    def finish(self, done_reason: str) -> tuple[bytes, str]:
        """The last event with a choice, and its finish_reason."""
        reason = "tool_calls" if self._calls else _finish_reason(done_reason)
        role = self._role[:-1]
        return (
            self._head + b'[{"index":0,"delta":{' + role + b'},"finish_reason":"' + reason.encode() + b'"}]}\n\n',
            reason,
        )

    def usage(self, prompt_tokens: int, output_tokens: int) -> bytes:
        """The event that only those get who asked for it."""
        return _usage(self._head, prompt_tokens, output_tokens)

    def _delta(self, delta: bytes) -> bytes:
        role, self._role = self._role, b""
        return self._head + b'[{"index":0,"delta":{' + role + delta


class CompletionEvents:
    """The events of one answer to /v1/completions."""

    def __init__(self, call: Call) -> None:
        self.id = f"cmpl-{uuid.uuid4().hex}"
        self._head = _head(call, self.id, "text_completion")
        self._offset = 0

    def text(self, content: bytes, _thinking: bytes, logprobs: list[Logprob] | None) -> bytes:
        """A piece of the answer, a JSON string."""
        tail = b',"logprobs":null,"finish_reason":null}]}\n\n'
        if logprobs:
            tail = b',"logprobs":' + _encode(self._legacy(logprobs)) + b',"finish_reason":null}]}\n\n'
        return self._head + b'[{"index":0,"text":' + content + tail

    def tool_calls(self, calls: list[ToolCall]) -> bytes:
        """A completion has none."""
        return b""

    def finish(self, done_reason: str) -> tuple[bytes, str]:
        """The last event with a choice, and its finish_reason."""
        reason = _finish_reason(done_reason)
        return self._head + b'[{"index":0,"text":"","finish_reason":"' + reason.encode() + b'"}]}\n\n', reason

    def usage(self, prompt_tokens: int, output_tokens: int) -> bytes:
        """The event that only those get who asked for it."""
        return _usage(self._head, prompt_tokens, output_tokens)

    def _legacy(self, logprobs: list[Logprob]) -> dict[str, object]:
        """The older form: parallel lists, and each token's place in the text."""
        offsets = []
        for entry in logprobs:
            offsets.append(self._offset)
            self._offset += len(entry.token)
        return {
            "tokens": [entry.token for entry in logprobs],
            "token_logprobs": [entry.logprob for entry in logprobs],
            "top_logprobs": [{top.token: top.logprob for top in entry.top_logprobs} for entry in logprobs],
            "text_offset": offsets,
        }


def events_for(call: Call) -> ChatEvents | CompletionEvents:
    """The events that the call's operation answers with."""
    return CompletionEvents(call) if call.operation is Operation.COMPLETION else ChatEvents(call)


def _head(call: Call, id_: str, kind: str) -> bytes:
    fields = {"id": id_, "object": kind, "created": int(time.time()), "model": call.model}
    return b"data: " + _encode(fields)[:-1] + b',"choices":'


def _finish_reason(done_reason: str) -> str:
    return "length" if done_reason == "length" else "stop"


def _usage(head: bytes, prompt_tokens: int, output_tokens: int) -> bytes:
    total = prompt_tokens + output_tokens
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens, "total_tokens": total}
    return head + b'[],"usage":' + _encode(usage) + b"}\n\n"

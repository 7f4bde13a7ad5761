"""A raw upstream that answers at once: an engine that costs next to nothing. Started as a process of its own.

It answers chat completions in OpenAI's form, whole or as ``CHUNKS`` events, each written by itself, and the few
questions that gateways ask of an engine that they do not know yet. On its first line it prints its ports as JSON.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Final, cast

import uvloop

MODEL: Final = "bench"
CHUNKS: Final = 64
"""Events of a stream that carry a piece of the answer."""

_MODELS = {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 32768}]}
_USAGE = {"prompt_tokens": 320, "completion_tokens": CHUNKS, "total_tokens": 320 + CHUNKS}


def _response(content: object) -> bytes:
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _chunk(data: str) -> bytes:
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(event), event)


def _event(choices: list[object], **more: object) -> bytes:
    common = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    return _chunk(json.dumps(common | {"choices": choices} | more, separators=(",", ":")))


def _delta(delta: dict[str, str], finish: str | None = None) -> list[object]:
    return [{"index": 0, "delta": delta, "finish_reason": finish}]


_WHOLE = _response(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": " word" * CHUNKS},
                "finish_reason": "stop",
            }
        ],
        "usage": _USAGE,
    }
)
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_FIRST = _event(_delta({"role": "assistant", "content": " word"}))
_NEXT = _event(_delta({"content": " word"}))
_LAST = _event(_delta({}, "stop"))
_USED = _event([], usage=_USAGE)
_DONE = _chunk("[DONE]") + b"0\r\n\r\n"
_STREAM = [_FIRST, *([_NEXT] * (CHUNKS - 1)), _LAST, _DONE]
_STREAM_WITH_USAGE = [*_STREAM[:-1], _USED, _DONE]

_ANSWERS = {
    b"/v1/models": _response(_MODELS),
    b"/health": _response({}),
    b"/version": _response({"version": "0.0.0"}),
    b"/metrics": _response({}),
    b"/model_info": _response({"model_path": MODEL}),
    b"/get_model_info": _response({"model_path": MODEL}),
}
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


class Upstream(asyncio.Protocol):
    """One connection. Understands requests with a Content-Length, one after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rest = b""
        self._open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._open = False

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        while (end := data.find(b"\r\n\r\n") + 4) > 3:
            head = data[:end].lower()
            at = head.find(b"content-length:")
            stop = end + (int(head[at + 15 : head.find(b"\r", at)]) if at > 0 else 0)
            if len(data) < stop:
                break
            self._answer(data[: data.find(b" HTTP/")], data[end:stop])
            data = data[stop:]
        self._rest = data

    def _answer(self, line: bytes, body: bytes) -> None:
        if not line.startswith(b"POST /v1/chat/completions"):
            self._transport.write(_ANSWERS.get(line.partition(b" ")[2], _NOT_FOUND))
        elif b'"stream":true' in body or b'"stream": true' in body:
            self._transport.write(_STREAM_HEAD)
            self._send(_STREAM_WITH_USAGE if b'"include_usage"' in body else _STREAM, 0)
        else:
            self._transport.write(_WHOLE)

    def _send(self, chunks: list[bytes], number: int) -> None:
        # One write a turn of the loop: more would leave in one segment, which no engine does.
        if self._open:
            self._transport.write(chunks[number])
            if number + 1 < len(chunks):
                self._loop.call_soon(self._send, chunks, number + 1)


async def serve(count: int) -> None:
    """Listen on ``count`` ports until the process is stopped: one upstream for each deployment of a gateway."""
    loop = asyncio.get_running_loop()
    sockets = [socket.create_server(("127.0.0.1", 0), backlog=4096) for _ in range(count)]
    for sock in sockets:
        await loop.create_server(lambda: Upstream(loop), sock=sock)
    print(json.dumps([sock.getsockname()[1] for sock in sockets]), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))

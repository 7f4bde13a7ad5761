"""The client's side of one request: what goes out through ASGI, the keep-alive, and the moment it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from cache.tasks import end

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Scope = MutableMapping[str, Any]
Header = tuple[bytes, bytes]

WATCH_AFTER_S = 0.03

KEEPALIVE_COMMENT = b": keep-alive\n\n"
_STREAM_HEADERS: list[Header] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """A server-sent event stream to one client, kept alive by comments while it is silent.

    ``headers`` is asked for the response headers at the moment that they go out. One timer runs for the whole stream:
    it looks at the last write instead of being set again for each chunk.
    """

    __slots__ = ("_headers", "_keepalive_s", "_last", "_loop", "_pulse", "_send", "_sending", "_timer", "started")

    def __init__(self, send: Send, headers: Callable[[], list[Header]], keepalive_s: float) -> None:
        self._send = send
        self._headers = headers
        self._keepalive_s = keepalive_s
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._sending = False
        self._pulse: asyncio.Task[None] | None = None
        self.started = False
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(keepalive_s, self._on_timer)

    def _on_timer(self) -> None:
        due = self._last + self._keepalive_s - self._loop.time()
        if due <= 0.001:
            due = self._keepalive_s
            if not self._sending:
                self._pulse = self._loop.create_task(self.write(KEEPALIVE_COMMENT))
        self._timer = self._loop.call_later(due, self._on_timer)

    async def write(self, data: bytes) -> None:
        """Send whole events; the first write sends the response's head as well."""
        while self._sending and self._pulse is not None and self._pulse is not asyncio.current_task():
            await self._pulse
        self._sending = True
        try:
            if not self.started:
                self.started = True
                await self._send(
                    {"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS + self._headers()}
                )
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
        finally:
            self._sending = False
            self._last = self._loop.time()

    async def end(self) -> None:
        """End the response; it has to have been started."""
        await self.aclose()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def aclose(self) -> None:
        """Stop the keep-alive. Nothing is written afterwards."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pulse is not None:
            await end(self._pulse)
            self._pulse = None


async def send_body(send: Send, status: int, headers: list[Header], body: bytes) -> None:
    """Send a whole JSON response."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})


class TooLarge(Exception):
    """The body passed the limit."""


class ClientLeft(Exception):
    """The client closed the connection."""


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Read the request's body. Raises ``TooLarge`` as soon as that is known, ``ClientLeft`` when it is cut."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise TooLarge
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False) and message["type"] == "http.request":
        if len(body) > limit:
            raise TooLarge
        return body
    pieces = [body]
    size = len(body)
    while message["type"] == "http.request" and message.get("more_body", False):
        message = await receive()
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise TooLarge
        pieces.append(piece)
    if message["type"] != "http.request":
        raise ClientLeft
    return b"".join(pieces)


class ClientWatch:
    """Cancels a request's task when its client closes the connection; ``left`` says that this is why.

    It begins to look after ``WATCH_AFTER_S``: most errors and many answers are done before, and need no second task.
    """

    __slots__ = ("_finished", "_receive", "_task", "_timer", "_watcher", "left")

    def __init__(self, receive: Receive, task: asyncio.Task[Any]) -> None:
        self.left = False
        self._receive = receive
        self._task = task
        self._finished = False
        self._watcher: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._begin)

    def _begin(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._finished:
            self.left = True
            self._task.cancel()

    def end(self) -> None:
        """Stop looking."""
        self._finished = True
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()

"""One HTTP/1.x client connection: writes a request, parses the response, knows whether it may be used again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

import httptools

from adapters.errors import Broken, EngineError, Interrupted, TimedOut

BUFFER_HIGH: Final = 256 * 1024
"""Body bytes held for a slow reader before the socket is left alone. The buffer's bound is this and one read more."""

WRITE_AT_ONCE: Final = 64 * 1024
"""A request body up to this size is joined with the head, so that it leaves in one segment train and one call."""

_WRITE_SLICE: Final = 256 * 1024

_TIMER_GRAIN_S: Final = 0.002
"""An event loop's timers may fire this much early (uvloop counts in milliseconds)."""


class Connection(asyncio.Protocol):
    """Used by one request at a time: ``start`` … ``head_complete`` … ``take`` until ``complete``, then ``rest``.

    Whoever waits calls ``wait`` and looks at the attributes again afterwards: waking up promises nothing. There is one
    timer: it is set again only when it fires, or when a shorter limit than the one it was set for begins.
    """

    __slots__ = (
        "_body",
        "_buffered",
        "_busy",
        "_deadline",
        "_keep_alive",
        "_limit_s",
        "_loop",
        "_max_head_bytes",
        "_method",
        "_on_close",
        "_parser",
        "_reading_paused",
        "_since_progress",
        "_timer",
        "_timer_at",
        "_transport",
        "_until_eof",
        "_waiter",
        "_writing_paused",
        "body_seen",
        "closed",
        "complete",
        "error",
        "head_complete",
        "headers",
        "on_body",
        "peer",
        "stale",
        "status",
        "used",
    )

    def __init__(self, peer: str, max_head_bytes: int, on_close: Callable[[Connection], None]) -> None:
        self.peer = peer
        self.closed = False
        self.used = False
        """Has carried an exchange before the present one."""
        self.stale = False
        """Closed by the peer while it rested: no byte of the present response was seen, so it may be asked again."""
        self.error: EngineError | None = None
        self._loop = asyncio.get_running_loop()
        self._max_head_bytes = max_head_bytes
        self._on_close = on_close
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = self._deadline = self._limit_s = 0.0
        self._writing_paused = self._reading_paused = False
        self._body: list[bytes] = []
        self.on_body = self._body.append  # the parser calls it for each piece: no Python frame in between
        self._reset("")
        self._busy = False
        self._parser = httptools.HttpResponseParser(self)

    def _reset(self, method: str) -> None:
        self._method = method
        self._busy = True
        self.status = 0
        self.headers: dict[str, str] = {}
        self.head_complete = self.complete = self.body_seen = False
        self._keep_alive = self._until_eof = False
        self._buffered = self._since_progress = 0

    # What the pool and a response do with it

    def start(self, method: str, head: bytes, body: bytes) -> None:
        """Begin an exchange. A body too large to be joined with ``head`` is left to ``write_body``."""
        self._reset(method)
        if self._transport is None or self.closed:
            self._lost(None)
        elif len(body) <= WRITE_AT_ONCE:
            self._transport.write(head + body)
        else:
            self._transport.write(head)

    async def write_body(self, body: bytes, silence_s: float) -> None:
        """Write a body above ``WRITE_AT_ONCE`` as fast as the engine takes it, or until it answers or closes.

        The engine may take nothing for ``silence_s``, then ``error`` is TimedOut.
        """
        view = memoryview(body)
        for offset in range(0, len(body), _WRITE_SLICE):
            while self._writing_paused and not (self.head_complete or self.closed):
                await self.wait(silence_s)
            if self.head_complete or self.closed:
                self._keep_alive = False  # the rest of the body was never sent
                return
            cast(asyncio.Transport, self._transport).write(view[offset : offset + _WRITE_SLICE])

    def wait(self, limit_s: float) -> asyncio.Future[None]:
        """A future that is done at the next event: bytes, end, or ``limit_s`` without either (see ``error``)."""
        self._limit_s = limit_s
        self._set_deadline(limit_s)
        waiter = self._waiter = self._loop.create_future()
        return waiter

    def take(self) -> bytes:
        """All body bytes that have arrived and were not taken yet."""
        body = self._body
        data = b"".join(body)
        body.clear()
        self._buffered = 0
        if self._reading_paused and not self.closed:
            self._reading_paused = False
            cast(asyncio.Transport, self._transport).resume_reading()
        return data

    @property
    def has_body(self) -> bool:
        """Whether ``take`` would return something."""
        return bool(self._body)

    @property
    def reusable(self) -> bool:
        """Whether the exchange ended so that another one may follow."""
        return self.complete and self._keep_alive and not self.closed

    def rest(self, keepalive_s: float) -> None:
        """Go idle, for ``keepalive_s`` at most. Unread body bytes are dropped."""
        self.take()
        self._busy = False
        self.used = True
        self._set_deadline(keepalive_s)

    def abort(self) -> None:
        """Close at once, without a farewell: that is how an engine learns that nobody waits for its answer."""
        if not self.closed:
            self._close()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        if not self._busy:  # nobody asked: whatever this is, the next response must not begin with it
            self._close()
            return
        body = self._body
        had = len(body)
        self._since_progress += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._keep_alive = False
            if not self.complete:
                self._fail_parse(str(error))
                return
        if len(body) != had:
            self.body_seen = True
            self._since_progress = 0
            self._buffered += len(data)
            if self._buffered > BUFFER_HIGH and not self._reading_paused and not self.complete:
                self._reading_paused = True
                cast(asyncio.Transport, self._transport).pause_reading()
        elif self._since_progress > self._max_head_bytes and not self.complete:
            self._fail_parse(f"more than {self._max_head_bytes} bytes of headers")
            return
        if self.head_complete:
            self._wake()

    def eof_received(self) -> None:
        # Not left to connection_lost: a transport that still has a request body to write would put that off.
        if not self.closed:
            self._lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed:
            self._lost(exc)
        self._transport = None
        del self._parser  # parser and connection hold each other

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        if not self.head_complete:
            self._wake()

    # Called by the parser

    def on_message_begin(self) -> None:
        if self.complete:
            raise _UnexpectedError  # bytes after the response: stop parsing, the connection is of no further use

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head_complete:
            return  # trailers
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers = self.headers
        headers[key] = f"{headers[key]}, {text}" if key in headers else text

    def on_headers_complete(self) -> None:
        parser = self._parser
        status = parser.get_status_code()
        if status < 200:
            self.headers = {}  # an interim response; 101 ends as a parser error, since nobody asked for it
            return
        if self._since_progress > self._max_head_bytes:
            size = sum(len(name) + len(value) + 4 for name, value in self.headers.items())
            if size > self._max_head_bytes:
                self.error = Broken(f"{self.peer} sent {size} bytes of headers, more than {self._max_head_bytes}")
                raise _UnexpectedError
        self.status = status
        self.head_complete = True
        self._since_progress = 0
        self._keep_alive = parser.should_keep_alive()
        if not self._keep_alive:
            coding = self.headers.get("transfer-encoding")
            if coding is not None:
                self._until_eof = not coding.lower().endswith("chunked")
            else:
                self._until_eof = "content-length" not in self.headers
        if self._method == "HEAD":
            self.complete = True
            raise _UnexpectedError  # the parser would wait for the body that the headers describe

    def on_message_complete(self) -> None:
        if self.head_complete:
            self.complete = True

    # Ends

    def _lost(self, exc: Exception | None) -> None:
        if self._busy and not self.complete:
            if not self.head_complete:
                self.stale = self.used and not self._since_progress
                self.error = Broken(f"{self.peer} closed the connection before it answered" + _because(exc))
            elif self._until_eof and exc is None:
                self.complete = True
            else:
                self.error = Interrupted(
                    f"{self.peer} closed the connection in the middle of its answer" + _because(exc)
                )
        self._close()

    def _fail_parse(self, why: str) -> None:
        if self.error is None:
            kind = Interrupted if self.body_seen or self._body else Broken
            self.error = kind(f"{self.peer} sent something that is not an HTTP response: {why}")
        self._close()

    def _close(self) -> None:
        if self._busy and not self.complete and self.error is None:
            self.error = (Interrupted if self.body_seen else Broken)(f"the connection to {self.peer} was closed here")
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        self._on_close(self)
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    # The timer

    def _set_deadline(self, limit_s: float) -> None:
        deadline = self._deadline = self._loop.time() + limit_s
        if self.closed:
            return
        if self._timer is None:
            self._arm(deadline)
        elif self._timer_at > deadline:
            self._timer.cancel()
            self._arm(deadline)

    def _arm(self, deadline: float) -> None:
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._busy and self._waiter is None:
            return  # nobody waits now; whoever waits next arms it again
        if self._deadline - self._loop.time() > _TIMER_GRAIN_S:
            self._arm(self._deadline)
            return
        if self._busy:
            if self.body_seen:
                self.error = Interrupted(f"{self.peer} was silent for {self._limit_s:g} s in the middle of its answer")
            else:
                what = "sent nothing of its answer" if self.head_complete else "did not answer"
                self.error = TimedOut(f"{self.peer} {what} within {self._limit_s:g} s")
        self._close()


class _UnexpectedError(Exception):
    """Raised inside a parser callback to stop the parser."""


def _because(exc: Exception | None) -> str:
    return f" ({exc})" if exc is not None else ""

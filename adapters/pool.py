"""The connections to one engine: those that rest, those in use, and the requests that wait for one."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from adapters.connection import Connection
from adapters.errors import Busy, Unreachable
from adapters.origin import Origin

END_LIMIT_S: Final = 0.5
"""How long a body's end is waited for of which nothing more is wanted, so that its connection can be used again."""


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """Limits of one engine's connections, in seconds, connections and bytes."""

    connect_timeout_s: float = 3.0
    """For a connection, or for a turn when all ``max_connections`` are in use."""
    header_timeout_s: float = 600.0
    """From the written request to the response's head. A long prefill without headers is legal."""
    read_timeout_s: float = 300.0
    """Silence between two reads of a body, or while the engine takes nothing of a request's body."""
    max_connections: int = 512
    keepalive_s: float = 30.0
    """An idle connection is closed after this."""
    max_head_bytes: int = 65536


class Pool:
    """Lends each connection to one request at a time. The one used last is lent first, so the others can expire."""

    def __init__(self, origin: Origin, limits: TransportLimits) -> None:
        self._origin = origin
        self._limits = limits
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._connecting = 0
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._closed = False

    @property
    def size(self) -> int:
        """Connections open or being opened."""
        return len(self._open) + self._connecting

    @property
    def resting(self) -> int:
        """Connections that wait for a request."""
        return len(self._idle)

    def take_idle(self) -> Connection | None:
        """A resting connection, if there is one: the usual case, without a suspension."""
        return self._idle.pop() if self._idle else None

    async def acquire(self) -> Connection:
        """A connection to use. Raises Unreachable, or Busy when none became free in time."""
        if self._closed:
            raise Unreachable(f"the transport to {self._origin.url} is closed")
        if self._idle:
            return self._idle.pop()
        if self.size < self._limits.max_connections:
            self._connecting += 1
            return await self._connect()
        return await self._wait_turn() or await self._connect()

    def release(self, connection: Connection) -> None:
        """Take a connection back. One whose exchange did not end well is closed at once."""
        if not connection.reusable or self._closed:
            connection.abort()
            return
        connection.rest(self._limits.keepalive_s)
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        self._idle.append(connection)

    def finish(self, connection: Connection) -> None:
        """Take a connection back as soon as its body has ended, and close it if that takes longer than the limit.

        Nobody waits for it: whoever had the answer may be gone before.
        """
        clock = asyncio.get_running_loop().time
        limit_at = clock() + END_LIMIT_S

        def look(_: object = None) -> None:
            connection.take()
            left_s = limit_at - clock()
            if connection.complete or connection.closed or left_s <= 0:
                self.release(connection)
            else:
                connection.wait(left_s).add_done_callback(look)

        look()

    def drop_idle(self) -> None:
        """Close all resting connections: one of them turned out to be dead."""
        for connection in tuple(self._idle):
            connection.abort()

    async def aclose(self) -> None:
        """Close everything. Requests under way end with an error; later ones are refused."""
        self._closed = True
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(Unreachable(f"the transport to {self._origin.url} is closed"))
        for connection in tuple(self._open):
            connection.abort()
        await asyncio.sleep(0)  # transports close their sockets in the loop's next turn

    async def _connect(self) -> Connection:
        """Open a connection in the slot that ``_connecting`` already counts."""
        limits, url = self._limits, self._origin.url
        connection: Connection | None = None
        try:
            async with asyncio.timeout(limits.connect_timeout_s):
                connection = await self._origin.connect(self._new)
            if self._closed:
                connection.abort()
                raise Unreachable(f"the transport to {url} is closed")
            if not connection.closed:
                self._open.add(connection)
            return connection
        except TimeoutError as error:
            raise Unreachable(f"{url} accepted no connection within {limits.connect_timeout_s:g} s") from error
        except OSError as error:
            raise Unreachable(f"no connection to {url}: {error.strerror or error}") from error
        finally:
            self._connecting -= 1
            if connection not in self._open:
                self._slot_freed()

    def _new(self) -> Connection:
        return Connection(self._origin.url, self._limits.max_head_bytes, self._on_close)

    async def _wait_turn(self) -> Connection | None:
        """Wait for a free connection, or for a free slot (None: ``_connecting`` counts it already)."""
        full = f"all {self._limits.max_connections} connections to {self._origin.url} are in use"
        if len(self._waiting) >= self._limits.max_connections:
            raise Busy(full)
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                return await waiter
        except BaseException as error:
            self._leave(waiter)
            if isinstance(error, TimeoutError):
                raise Busy(full) from error
            raise

    def _leave(self, waiter: asyncio.Future[Connection | None]) -> None:
        """Give back what was lent in the very moment of giving up, or leave the queue."""
        if not waiter.done() or waiter.cancelled():
            if waiter in self._waiting:
                self._waiting.remove(waiter)
        elif waiter.exception() is None:
            connection = waiter.result()
            if connection is not None:
                self.release(connection)
            else:
                self._connecting -= 1
                self._slot_freed()

    def _on_close(self, connection: Connection) -> None:
        if connection in self._open:
            self._open.remove(connection)
            if connection in self._idle:
                self._idle.remove(connection)
            self._slot_freed()

    def _slot_freed(self) -> None:
        while self._waiting and not self._closed:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._connecting += 1
                waiter.set_result(None)
                return

"""The HTTP/1.x client in front of each engine: a pool of keep-alive connections, every wait with a limit.

It knows nothing of inference. An HTTP status is not an error here; what goes wrong below HTTP becomes an EngineError:

- Unreachable: refused, no such host, TLS failure, no connection within ``connect_timeout_s``;
- Busy: all connections stayed in use for that long;
- TimedOut: no response head, or no byte of the body, within the limit;
- Broken: not HTTP, or closed before the head;
- Interrupted: silent or cut after that.

Nothing is retried, with one exception: a connection that rested and turns out closed before a byte of the response
came (the engine closed it while the request was on its way) is replaced once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from adapters.connection import WRITE_AT_ONCE
from adapters.origin import Origin
from adapters.pool import Pool, TransportLimits
from adapters.response import Response

__all__ = ["Response", "Transport", "TransportLimits"]

_OURS: Final = frozenset(
    [
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
)
"""Headers that belong to the connection and not to the request: a caller's are left out."""


class Transport:
    """All connections to one engine. Used within one event loop."""

    def __init__(
        self,
        base_url: str,
        *,
        limits: TransportLimits | None = None,
        headers: Mapping[str, str] | None = None,
        verify: bool | str = True,
    ) -> None:
        """``headers`` go with each request, and none of a request's own replaces them (``Authorization``, say).

        ``base_url`` and ``verify`` as in ``Origin.parse``. Raises ValueError.
        """
        origin = Origin.parse(base_url, verify)
        self._limits = limits or TransportLimits()
        self._pool = Pool(origin, self._limits)
        self._prefix = origin.prefix
        own = {name.lower(): value for name, value in (headers or {}).items()}
        self._reserved = _OURS | own.keys()
        lines = [f"{name}: {value}\r\n" for name, value in own.items()]
        self._fixed = "".join((f"Host: {origin.authority}\r\n", "Accept-Encoding: identity\r\n", *lines))
        _refuse_line_breaks(self._fixed, 2 + len(own))

    @property
    def open_connections(self) -> int:
        """Connections open or being opened, in use or not."""
        return self._pool.size

    @property
    def resting_connections(self) -> int:
        """Connections that the next requests need not open."""
        return self._pool.resting

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        headers: Sequence[tuple[str, str]] = (),
        header_timeout_s: float | None = None,
        read_timeout_s: float | None = None,
    ) -> Response:
        """Send a request and return its response as soon as the head is there.

        ``path`` follows the base URL's. Raises ValueError for a path or header that cannot be sent, and EngineErrors
        as above. Cancelling it closes the connection at once.
        """
        limits = self._limits
        head = self._head(method, path, len(body), headers)
        silence_s = limits.read_timeout_s if read_timeout_s is None else read_timeout_s
        head_s = limits.header_timeout_s if header_timeout_s is None else header_timeout_s
        clock = asyncio.get_running_loop().time
        for _attempt in range(2):
            connection = self._pool.take_idle() or await self._pool.acquire()
            connected_at = clock()
            try:
                connection.start(method, head, body)
                if len(body) > WRITE_AT_ONCE:
                    await connection.write_body(body, silence_s)
                while not (connection.head_complete or connection.closed):
                    await connection.wait(head_s)
            except BaseException:
                connection.abort()
                raise
            if not connection.stale:
                break
            self._pool.drop_idle()  # the others rested as long: the second attempt gets a new one
        if not connection.head_complete and connection.error is not None:
            raise connection.error
        return Response(self._pool, connection, silence_s, connected_at)

    async def aclose(self) -> None:
        """Close all connections. Requests under way end with an error."""
        await self._pool.aclose()

    def _head(self, method: str, path: str, length: int, headers: Sequence[tuple[str, str]]) -> bytes:
        if not path.startswith("/") or " " in path or not path.isascii() or not path.isprintable():
            raise ValueError(f"not a path: {path!r}")
        reserved = self._reserved
        lines = [f"{name}: {value}\r\n" for name, value in headers if name.lower() not in reserved]
        own = "".join(lines)
        _refuse_line_breaks(own, len(lines))
        size = f"Content-Length: {length}\r\n" if length or method not in ("GET", "HEAD") else ""
        return f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._fixed}{own}{size}\r\n".encode("latin-1")


def _refuse_line_breaks(lines: str, count: int) -> None:
    if lines.count("\n") != count or lines.count("\r") != count:
        raise ValueError("a header contains a line break")

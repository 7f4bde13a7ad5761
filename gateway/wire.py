"""uvicorn's HTTP/1.1, with each response's head in one segment with the first bytes of its body."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_INTERIM = b"HTTP/1.1 1"


class JoinedWrites:
    """A transport that holds a response's head back until the body's first bytes, which the ASGI specification allows.

    One system call less a response is a tenth of what a short one costs, and the client wakes up once.
    """

    __slots__ = ("_head", "_transport", "_write")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._write = transport.write
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write ``data``, after the head that was held back; hold it when it is a head itself."""
        head = self._head
        if head:
            self._head = b""
            self._write(head + data)
        elif data.startswith(b"HTTP/1.1 ") and not data.startswith(_INTERIM):
            self._head = data
        else:
            self._write(data)

    def flush(self) -> None:
        """Write a head that no body follows: the answer to HEAD."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """Close once everything is written."""
        self.flush()
        self._transport.close()


class Protocol(HttpToolsProtocol):
    """One client connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, JoinedWrites(transport)))

    def on_response_complete(self) -> None:
        cast(JoinedWrites, self.transport).flush()
        super().on_response_complete()

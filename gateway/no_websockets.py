"""The answer to clients that ask for a WebSocket: there are none, and no library for them is imported."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from gateway.errors import ApiError

_BODY: Final = ApiError(400, "There are no WebSockets here: `stream` in the request gives server-sent events.").encode()
_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: "
    + str(len(_BODY)).encode()
    + b"\r\n\r\n"
    + _BODY
)


class NoWebSockets(asyncio.Protocol):
    """Takes over from uvicorn's HTTP protocol once a client wants to leave HTTP, answers and closes."""

    def __init__(self, **_: Any) -> None:
        """What uvicorn tells a protocol is not needed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answer and close."""
        transport = cast(asyncio.Transport, transport)
        transport.write(_ANSWER)
        transport.close()

"""The server's writes: a head leaves with the body's first bytes, and is never forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn

from gateway.wire import JoinedWrites, Protocol

LIMIT_S = 5.0


class Recorded(asyncio.Transport):
    """Keeps what is written, write by write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def test_a_head_leaves_in_one_write_with_the_first_bytes_of_the_body() -> None:
    transport = Recorded()
    joined = JoinedWrites(transport)
    joined.write(b"HTTP/1.1 200 OK\r\n\r\n")
    assert transport.writes == []
    joined.write(b"one")
    joined.write(b"two")
    assert transport.writes == [b"HTTP/1.1 200 OK\r\n\r\none", b"two"]


def test_an_interim_response_is_not_held_back() -> None:
    transport = Recorded()
    JoinedWrites(transport).write(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert transport.writes == [b"HTTP/1.1 100 Continue\r\n\r\n"]


def test_closing_writes_the_head_that_was_held_back() -> None:
    transport = Recorded()
    joined = JoinedWrites(transport)
    joined.write(b"HTTP/1.1 500 Internal Server Error\r\n\r\n")
    joined.close()
    assert transport.writes == [b"HTTP/1.1 500 Internal Server Error\r\n\r\n"]
    assert joined.is_closing()


async def _app(scope: Any, receive: Any, send: Any) -> None:
    body = b"" if scope["path"] == "/nothing" else b"four"
    status = 204 if scope["path"] == "/nothing" else 200
    headers = [] if scope["path"] == "/nothing" else [(b"content-length", b"4")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize(
    ("request_line", "ends_with"),
    [("GET /", b"\r\n\r\nfour"), ("HEAD /", b"\r\n\r\n"), ("GET /nothing", b"\r\n\r\n")],
)
async def test_every_kind_of_response_arrives_on_a_connection_that_stays_open(
    request_line: str, ends_with: bytes
) -> None:
    config = uvicorn.Config(_app, port=0, http=Protocol, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        async with asyncio.timeout(LIMIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(2):
                writer.write(f"{request_line} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
                answer = await reader.readuntil(b"\r\n\r\n")
                if ends_with.endswith(b"four"):
                    answer += await reader.readexactly(4)
                assert answer.startswith(b"HTTP/1.1 20")
                assert answer.endswith(ends_with)
            writer.close()
            await writer.wait_closed()
    finally:
        await server.shutdown()

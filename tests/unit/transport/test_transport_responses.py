"""What the HTTP client makes of responses, odd ones included."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import pytest
from raw_server import Peer, RawServer

from adapters.connection import BUFFER_HIGH
from adapters.errors import Broken, Interrupted
from adapters.transport import Transport

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def saying(*parts: bytes) -> Callable[[Peer], object]:
    """A script: read a request, send the parts one after the other, close."""

    async def script(peer: Peer) -> None:
        await peer.head()
        for part in parts:
            await peer.send(part)

    return script


async def test_a_thousand_requests_use_one_connection(server: RawServer, transport: Transport) -> None:
    for _ in range(1000):
        response = await transport.request("POST", "/", body=b"hello")
        assert (response.status, await response.read()) == (200, b"ok")
        response.close()
    assert server.accepted == 1
    assert transport.open_connections == 1


async def test_an_http_1_0_body_ends_with_the_connection(server: RawServer, transport: Transport) -> None:
    server.script = saying(b"HTTP/1.0 200 OK\r\nServer: BaseHTTP\r\n\r\nda", b"ta: 1\n\n")
    response = await transport.request("GET", "/")
    assert response.headers == {"server": "BaseHTTP"}
    assert await response.read() == b"data: 1\n\n"
    response.close()
    assert transport.open_connections == 0


async def test_an_http_1_0_body_that_ends_in_a_reset_is_not_whole(server: RawServer, transport: Transport) -> None:
    seen = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.0 200 OK\r\n\r\nhalf")
        await seen.wait()
        peer.reset()

    server.script = script
    response = await transport.request("GET", "/")
    assert await response.read_some() == b"half"
    seen.set()
    with pytest.raises(Interrupted):
        await response.read_some()


async def test_chunks_and_trailers(server: RawServer, transport: Transport) -> None:
    server.script = saying(CHUNKED, b"3;ext=1\r\nabc\r", b"\n2\r\nd", b"e\r\n0\r\nX-Checksum: 1\r\n\r\n")
    response = await transport.request("GET", "/")
    assert await response.read() == b"abcde"
    assert "x-checksum" not in response.headers


async def test_each_chunk_can_be_read_when_it_arrives(server: RawServer, transport: Transport) -> None:
    turn = asyncio.Semaphore(0)

    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(CHUNKED)
        for number in range(3):
            await turn.acquire()
            await peer.send(b"1\r\n%d\r\n" % number)
        await turn.acquire()
        await peer.send(b"0\r\n\r\n")

    server.script = script
    response = await transport.request("GET", "/")
    for expected in (b"0", b"1", b"2", b""):
        turn.release()
        assert await response.read_some() == expected
    assert await response.read_some() == b""


@pytest.mark.parametrize("status", [204, 304])
async def test_responses_without_a_body_end_with_their_head(
    server: RawServer, transport: Transport, status: int
) -> None:
    async def script(peer: Peer) -> None:
        for _ in range(2):
            await peer.request()
            await peer.send(b"HTTP/1.1 %d -\r\n\r\n" % status)

    server.script = script
    for _ in range(2):
        response = await transport.request("GET", "/")
        assert (response.status, await response.read()) == (status, b"")
    assert server.accepted == 1


async def test_a_head_response_ends_with_its_head(server: RawServer, transport: Transport) -> None:
    server.script = saying(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
    response = await transport.request("HEAD", "/")
    assert response.headers["content-length"] == "5"
    assert await response.read() == b""


async def test_interim_responses_are_passed_over(server: RawServer, transport: Transport) -> None:
    server.script = saying(
        b"HTTP/1.1 100 Continue\r\nX-Interim: 1\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    )
    response = await transport.request("POST", "/", body=b"x")
    assert (response.status, response.headers, await response.read()) == (200, {"content-length": "2"}, b"ok")


async def test_a_repeated_header_is_joined(server: RawServer, transport: Transport) -> None:
    server.script = saying(b"HTTP/1.1 200 OK\r\nVary: a\r\nvary: b\r\nContent-Length: 0\r\n\r\n")
    response = await transport.request("GET", "/")
    assert response.headers["vary"] == "a, b"
    response.close()


async def test_a_connection_that_says_close_is_not_used_again(server: RawServer, transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.answer(extra=b"Connection: close\r\n")
        await peer.gone()

    server.script = script
    for number in (1, 2):
        response = await transport.request("GET", "/")
        assert await response.read() == b"ok"
        assert server.accepted == number
        assert transport.open_connections == 0


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", b"HTT", b"\0\0"])
async def test_bytes_after_a_response_never_become_the_next_one(
    server: RawServer, transport: Transport, garbage: bytes
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood", garbage)
        await peer.gone()

    server.script = script
    for number in (1, 2):
        response = await transport.request("GET", "/")
        assert await response.read() == b"good"
        assert server.accepted == number


async def test_a_response_nobody_asked_for_ends_an_idle_connection(server: RawServer, transport: Transport) -> None:
    closed = asyncio.Event()
    rests = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.answer()
        await rests.wait()
        await peer.answer(b"evil")
        await peer.gone()
        closed.set()

    server.script = script
    await (await transport.request("GET", "/")).read()
    rests.set()
    await closed.wait()
    assert transport.open_connections == 0


async def test_a_slow_reader_holds_the_engine_back(server: RawServer, transport: Transport) -> None:
    total = 64 * 1024 * 1024
    sent = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        await peer.send(bytes(total))
        sent.set()

    server.script = script
    response = await transport.request("GET", "/")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sent.wait(), 0.5)
    first = await response.read_some()
    assert len(first) <= 2 * BUFFER_HIGH
    assert len(first) + len(await response.read(limit=total)) == total


async def test_an_answer_beyond_the_readers_limit_is_broken_off(server: RawServer, transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.0 200 OK\r\n\r\n")
        while True:  # until the client's end is closed
            await peer.send(bytes(1024))

    server.script = script
    response = await transport.request("GET", "/")
    with pytest.raises(Broken, match="more than 5000 bytes"):
        await response.read(limit=5000)
    assert transport.open_connections == 0


async def test_a_closed_response_cannot_be_read_on(server: RawServer, transport: Transport) -> None:
    server.script = saying(CHUNKED, b"1\r\na\r\n0\r\n\r\n")
    response = await transport.request("GET", "/")
    response.close()
    response.close()
    with pytest.raises(Interrupted):
        await response.read_some()


async def test_a_response_that_was_lost_gives_its_connection_back(server: RawServer, transport: Transport) -> None:
    server.script = saying(CHUNKED, b"1\r\na\r\n")
    response = await transport.request("GET", "/")
    assert transport.open_connections == 1
    del response
    gc.collect()
    assert transport.open_connections == 0

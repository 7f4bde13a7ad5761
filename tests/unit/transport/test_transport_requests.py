"""What the HTTP client sends."""

from __future__ import annotations

import asyncio
import socket

import pytest
from raw_server import Peer, RawServer

from adapters.transport import Transport


async def first_request(
    server: RawServer, transport: Transport, **request: object
) -> tuple[str, dict[str, list[str]], bytes]:
    seen: asyncio.Future[tuple[str, dict[str, list[str]], bytes]] = asyncio.get_running_loop().create_future()

    async def script(peer: Peer) -> None:
        seen.set_result(await peer.request())
        await peer.answer()

    server.script = script
    response = await transport.request(**{"method": "POST", "path": "/x", **request})  # type: ignore[arg-type]
    assert await response.read() == b"ok"
    return await seen


async def test_the_request_names_the_engines_host_and_never_the_callers(
    server: RawServer, transport: Transport
) -> None:
    _, headers, _ = await first_request(server, transport, headers=[("Host", "public.example"), ("X-Request-Id", "7")])
    assert headers["host"] == [f"127.0.0.1:{server.port}"]
    assert headers["x-request-id"] == ["7"]


async def test_headers_of_the_callers_connection_are_left_out(server: RawServer, transport: Transport) -> None:
    theirs = [
        ("Connection", "close"),
        ("Content-Length", "999"),
        ("Transfer-Encoding", "chunked"),
        ("Accept-Encoding", "gzip"),
        ("Expect", "100-continue"),
    ]
    _, headers, body = await first_request(server, transport, headers=theirs, body=b"abc")
    assert headers["content-length"] == ["3"]
    assert body == b"abc"
    assert headers["accept-encoding"] == ["identity"]
    assert headers.keys().isdisjoint({"connection", "transfer-encoding", "expect"})


async def test_a_requests_header_cannot_replace_one_of_the_transport(server: RawServer) -> None:
    transport = Transport(server.url + "/v1/", headers={"Authorization": "Bearer engine"})
    line, headers, _ = await first_request(server, transport, headers=[("authorization", "Bearer caller")])
    assert headers["authorization"] == ["Bearer engine"]
    assert line == "POST /v1/x HTTP/1.1"
    await transport.aclose()


async def test_an_empty_post_has_a_length_and_a_get_has_none(server: RawServer, transport: Transport) -> None:
    _, headers, _ = await first_request(server, transport)
    assert headers["content-length"] == ["0"]
    _, headers, _ = await first_request(server, transport, method="GET")
    assert "content-length" not in headers


@pytest.mark.parametrize("path", ["x", "", "/a b", "/a\r\nX: y", "/ü", "/\t"])
async def test_a_path_that_cannot_be_sent_is_refused(transport: Transport, path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        await transport.request("GET", path)
    assert transport.open_connections == 0


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nb", "a\rb"])
async def test_a_header_cannot_smuggle_in_another_one(transport: Transport, value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        await transport.request("GET", "/", headers=[("x-a", value)])
    with pytest.raises(ValueError, match="line break"):
        Transport("http://127.0.0.1:1", headers={"x-a": value})


@pytest.mark.parametrize(
    "url", ["127.0.0.1:80", "ftp://h", "http://", "http://:80", "http://h/?a=1", "http://h/#a", "http://h:99999"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        Transport(url)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError) as refusal:
        Transport("http://user:hunter2@host")
    assert "hunter2" not in str(refusal.value)


async def test_a_large_body_arrives_whole_at_an_engine_that_reads_slowly(
    server: RawServer, transport: Transport
) -> None:
    body = bytes(range(256)) * (30 * 4096)
    _, _, received = await first_request(server, transport, body=body)
    assert received == body


async def test_small_requests_are_not_held_back(server: RawServer, transport: Transport) -> None:
    response = await transport.request("GET", "/")
    connection = response._connection
    assert connection is not None
    sock = connection._transport.get_extra_info("socket")  # type: ignore[union-attr]
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    response.close()

"""The HTTP client over TLS, against certificates made for the test."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme
from raw_server import Peer, RawServer

from adapters.errors import EngineError, Interrupted, Unreachable
from adapters.transport import Transport


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def authority_file(authority: trustme.CA, tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return str(path)


def context(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


@pytest.fixture
async def server(authority: trustme.CA) -> AsyncIterator[RawServer]:
    async with RawServer(context(authority.issue_cert("127.0.0.1"))) as server:
        yield server


async def ask(transport: Transport, body: bytes = b"") -> bytes:
    return await (await transport.request("POST", "/", body=body)).read()


async def test_a_trusted_certificate_is_accepted_and_its_connection_kept(
    server: RawServer, authority_file: str
) -> None:
    transport = Transport(server.url, verify=authority_file)
    for _ in range(3):
        assert await ask(transport) == b"ok"
    assert server.accepted == 1
    await transport.aclose()
    assert transport.open_connections == 0


async def test_a_large_body_goes_through_tls(server: RawServer, authority_file: str) -> None:
    async def echo(peer: Peer) -> None:
        _, _, body = await peer.request()
        await peer.answer(body)

    server.script = echo
    body = bytes(range(256)) * (5 * 4096)
    transport = Transport(server.url, verify=authority_file)
    assert await ask(transport, body) == body
    await transport.aclose()


async def test_an_unknown_certificate_is_unreachable(server: RawServer) -> None:
    transport = Transport(server.url)
    with pytest.raises(Unreachable, match="certificate"):
        await ask(transport)
    assert transport.open_connections == 0


async def test_another_hosts_certificate_is_unreachable(authority: trustme.CA, authority_file: str) -> None:
    async with RawServer(context(authority.issue_cert("other.example"))) as server:
        transport = Transport(server.url, verify=authority_file)
        with pytest.raises(Unreachable):
            await ask(transport)


async def test_verification_can_be_turned_off(server: RawServer) -> None:
    transport = Transport(server.url, verify=False)
    assert await ask(transport) == b"ok"
    await transport.aclose()


async def test_tls_to_a_server_that_speaks_none_is_unreachable() -> None:
    async with RawServer() as server:

        async def hello(peer: Peer) -> None:
            await peer.reader.read(1)
            await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        server.script = hello
        transport = Transport(server.url.replace("http:", "https:"))
        with pytest.raises(Unreachable):
            await ask(transport)
        assert transport.open_connections == 0


async def test_a_body_cut_under_tls_is_interrupted(server: RawServer, authority_file: str) -> None:
    async def cut(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")

    server.script = cut
    transport = Transport(server.url, verify=authority_file)
    response = await transport.request("GET", "/")
    assert await response.read_some() == b"half"
    with pytest.raises(Interrupted):
        await response.read_some()
    assert transport.open_connections == 0


async def test_an_engine_that_hangs_up_right_after_the_handshake_leaves_no_connection(
    server: RawServer, authority_file: str
) -> None:
    async def hang_up(peer: Peer) -> None:
        peer.writer.close()

    server.script = hang_up
    transport = Transport(server.url, verify=authority_file)
    for _ in range(20):
        with pytest.raises(EngineError):
            await ask(transport)
        assert transport.open_connections == 0

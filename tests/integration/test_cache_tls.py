"""The Redis store by TLS: a real Valkey behind a server that ends the encryption, as hosted ones are."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from valkeys import Valkey

from cache.address import parse_address
from cache.redis_store import RedisStore

StartValkey = Callable[..., Valkey]
LIMIT_S = 15.0


@asynccontextmanager
async def encrypted(server: Valkey, authority: trustme.CA) -> AsyncIterator[int]:
    """Serve a Valkey by TLS as ``localhost``; yields the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    open_ones: set[asyncio.StreamWriter] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", server.port)
        open_ones.update((writer, inner_writer))
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))

    listening = await asyncio.start_server(relay, "localhost", 0, ssl=context)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for writer in open_ones:
            writer.close()
        await listening.wait_closed()


@asynccontextmanager
async def store_at(url: str) -> AsyncIterator[RedisStore]:
    store = RedisStore(parse_address(url), lookup_s=5.0)
    store.open()
    try:
        yield store
    finally:
        await store.aclose()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():  # noqa: ASYNC110 - another process sets no event here
            await asyncio.sleep(0.01)


@pytest.fixture
def trusted(tmp_path: Path) -> tuple[trustme.CA, Path]:
    authority, file = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(file)
    return authority, file


async def test_an_entry_is_written_and_found(valkey: StartValkey, trusted: tuple[trustme.CA, Path]) -> None:
    authority, file = trusted
    server = valkey(tcp=True)
    async with encrypted(server, authority) as port, store_at(f"rediss://localhost:{port}?ca={file}") as store:
        await until(lambda: store.available)
        assert store.put("a", b"kept", 60.0)
        await store.flush(LIMIT_S)
        assert (await store.lookup(["a"])).data == b"kept"


async def test_a_server_whose_certificate_nobody_vouches_for_is_not_used(valkey: StartValkey) -> None:
    server = valkey(tcp=True)
    async with encrypted(server, trustme.CA()) as port, store_at(f"rediss://localhost:{port}") as store:
        await until(lambda: "certificate" in store.reading.why.lower())
        assert not store.available

"""What the HTTP client makes of engines that are away, silent, wrong or cut short."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
from raw_server import Peer, RawServer

from adapters.errors import Broken, EngineError, Interrupted, TimedOut, Unreachable
from adapters.transport import Transport, TransportLimits

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def ask(transport: Transport) -> bytes:
    response = await transport.request("POST", "/", body=b"x")
    return await response.read()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


async def test_a_refused_connection_is_unreachable() -> None:
    transport = Transport(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(Unreachable, match="no connection to http://127"):
        await transport.request("GET", "/")
    assert transport.open_connections == 0


async def test_an_unknown_host_is_unreachable() -> None:
    transport = Transport("http://no-such-host.invalid")
    with pytest.raises(Unreachable):
        await transport.request("GET", "/")
    assert transport.open_connections == 0


async def test_a_host_that_never_accepts_is_unreachable_after_the_limit() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        host, port = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]  # a full backlog: the next connection gets no answer
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex((host, port))
        transport = Transport(f"http://{host}:{port}", limits=TransportLimits(connect_timeout_s=0.1))
        with pytest.raises(Unreachable, match=r"within 0\.1 s"):
            await transport.request("GET", "/")
        assert transport.open_connections == 0
        for filler in fillers:
            filler.close()


async def test_an_engine_that_does_not_answer_is_timed_out(
    server: RawServer, connect: Callable[..., Transport]
) -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.gone()
        left.set()

    server.script = script
    transport = connect(header_timeout_s=0.05)
    with pytest.raises(TimedOut, match=r"did not answer within 0\.05 s"):
        await ask(transport)
    await left.wait()
    assert transport.open_connections == 0


async def test_half_a_head_and_interim_responses_do_not_put_the_limit_off(
    server: RawServer, connect: Callable[..., Transport]
) -> None:
    async def script(peer: Peer) -> None:
        await peer.head()
        while True:
            await peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            await asyncio.sleep(0.02)

    server.script = script
    with pytest.raises(TimedOut):
        await ask(connect(header_timeout_s=0.1))


async def test_a_limit_may_be_given_with_the_request(server: RawServer, transport: Transport) -> None:
    server.script = Peer.gone
    with pytest.raises(TimedOut):
        await transport.request("GET", "/", header_timeout_s=0.05)


async def test_silence_before_the_body_is_timed_out(server: RawServer, connect: Callable[..., Transport]) -> None:
    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(CHUNKED)
        await peer.gone()

    server.script = script
    transport = connect(read_timeout_s=0.05)
    with pytest.raises(TimedOut, match="sent nothing of its answer"):
        await ask(transport)
    assert transport.open_connections == 0


async def test_silence_within_the_body_interrupts_it(server: RawServer, connect: Callable[..., Transport]) -> None:
    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(CHUNKED, b"1\r\na\r\n")
        await peer.gone()

    server.script = script
    transport = connect(read_timeout_s=0.05)
    response = await transport.request("GET", "/")
    assert await response.read_some() == b"a"
    with pytest.raises(Interrupted, match="was silent"):
        await response.read_some()
    assert transport.open_connections == 0


async def test_a_stream_may_last_longer_than_the_limit_on_silence(
    server: RawServer, connect: Callable[..., Transport]
) -> None:
    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(CHUNKED)
        for _ in range(20):
            await asyncio.sleep(0.02)
            await peer.send(b"1\r\na\r\n")
        await peer.send(b"0\r\n\r\n")

    server.script = script
    assert await ask(connect(read_timeout_s=0.2, header_timeout_s=0.2)) == b"a" * 20


async def test_a_reader_that_takes_its_time_is_no_silence_of_the_engine(
    server: RawServer, connect: Callable[..., Transport]
) -> None:
    later = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(CHUNKED, b"1\r\na\r\n")
        await later.wait()
        await peer.send(b"1\r\nb\r\n0\r\n\r\n")

    server.script = script
    transport = connect(header_timeout_s=0.1, read_timeout_s=0.1)
    response = await transport.request("GET", "/")
    assert await response.read_some() == b"a"
    await asyncio.sleep(0.3)  # well past the limit, reading nothing
    later.set()
    assert await response.read() == b"b"


async def test_an_engine_that_takes_nothing_of_a_body_is_timed_out(
    server: RawServer, connect: Callable[..., Transport]
) -> None:
    async def script(peer: Peer) -> None:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    server.script = script
    transport = connect(read_timeout_s=0.2)
    with pytest.raises(TimedOut):
        await transport.request("POST", "/", body=bytes(30 * 1024 * 1024))
    assert transport.open_connections == 0


async def test_an_answer_before_the_whole_body_was_sent_is_heard(server: RawServer, transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.answer(b"too large", status="413 Content Too Large")
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    server.script = script
    response = await transport.request("POST", "/", body=bytes(30 * 1024 * 1024))
    assert (response.status, await response.read()) == (413, b"too large")
    assert transport.open_connections == 0


async def test_an_engine_that_hangs_up_while_a_body_is_written_is_broken(
    server: RawServer, transport: Transport
) -> None:
    async def script(peer: Peer) -> None:
        await peer.head()
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.writer.write_eof()
        await asyncio.Event().wait()

    server.script = script
    with pytest.raises(Broken):
        await transport.request("POST", "/", body=bytes(30 * 1024 * 1024))
    assert transport.open_connections == 0


async def test_an_engine_that_hangs_up_as_soon_as_it_is_called_is_broken(
    server: RawServer, transport: Transport
) -> None:
    async def script(peer: Peer) -> None:
        peer.reset()

    server.script = script
    for _ in range(20):
        with pytest.raises(Broken):
            await ask(transport)
        assert transport.open_connections == 0


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 200",
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nX: " + b"a" * 70000 + b"\r\n\r\na",
        CHUNKED + b"zz\r\n",
    ],
    ids=["nothing", "half a head", "no HTTP", "two lengths", "no length", "upgrade", "huge head", "no chunk"],
)
async def test_nonsense_is_broken(server: RawServer, transport: Transport, said: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(said)

    server.script = script
    with pytest.raises(Broken):
        await ask(transport)
    assert server.accepted == 1
    assert transport.open_connections == 0


async def test_headers_without_end_are_broken(server: RawServer, transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n")
        while True:
            await peer.send(b"X-More: and more\r\n" * 100)

    server.script = script
    with pytest.raises(Broken, match="headers"):
        await ask(transport)


async def test_trailers_without_end_are_broken(server: RawServer, transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED, b"1\r\na\r\n0\r\n")
        while True:
            await peer.send(b"X-More: and more\r\n" * 100)

    server.script = script
    with pytest.raises(EngineError, match="headers"):
        await ask(transport)


@pytest.mark.parametrize(
    "said",
    [HEAD, HEAD + b"12345", CHUNKED + b"5\r\nhello\r\n", CHUNKED + b"5\r\nhel", CHUNKED + b"1\r\na\r\n0\r\n"],
    ids=["no byte of a length", "half a length", "no last chunk", "half a chunk", "no end of trailers"],
)
@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_a_cut_body_is_interrupted(server: RawServer, transport: Transport, said: bytes, ending: str) -> None:
    heard = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(said)
        await heard.wait()
        if ending == "reset":
            peer.reset()

    server.script = script
    response = await transport.request("GET", "/")
    heard.set()
    with pytest.raises(Interrupted):
        await response.read()
    assert transport.open_connections == 0


async def test_what_arrived_before_a_cut_is_delivered_before_the_error(server: RawServer, transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED, b"5\r\nhello\r\n", b"zz\r\n")

    server.script = script
    response = await transport.request("GET", "/")
    assert await response.read_some() == b"hello"
    with pytest.raises(Interrupted):
        await response.read_some()


async def test_a_response_and_its_end_at_once_is_whole(server: RawServer, transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.answer(b"bye")

    server.script = script
    for _ in range(50):
        assert await ask(transport) == b"bye"

"""A reader that leaves: the engine notices at once, and no connection is lost."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import psutil
import pytest
from raw_server import Peer, RawServer

from adapters.transport import Transport

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Watched:
    """A script that sends what it is given and tells when the client is there and when it has left."""

    def __init__(self, said: bytes, reads: bool = True) -> None:
        self.said = said
        self.reads = reads
        self.asked = asyncio.Event()
        self.left = asyncio.Event()

    async def __call__(self, peer: Peer) -> None:
        if self.reads:
            await peer.request()
            await peer.send(self.said)
        else:
            await peer.head()
        self.asked.set()
        await peer.gone()
        self.left.set()


async def cancel(task: asyncio.Task[object]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def drain(transport: Transport) -> None:
    response = await transport.request("POST", "/", body=b"x")
    while await response.read_some():
        pass


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 200", CHUNKED, CHUNKED + b"1\r\na\r\n"], ids=["silent", "half a head", "head", "mid-body"]
)
async def test_a_cancelled_call_closes_its_connection_wherever_it_is(
    server: RawServer, transport: Transport, said: bytes
) -> None:
    server.script = watched = Watched(said)
    task = asyncio.create_task(drain(transport))
    await watched.asked.wait()
    await asyncio.sleep(0.01)  # lets the reader get to its wait; any other moment must do as well
    await cancel(task)
    assert transport.open_connections == 0
    await watched.left.wait()


async def test_a_call_cancelled_while_it_writes_closes_its_connection(server: RawServer, transport: Transport) -> None:
    server.script = watched = Watched(b"", reads=False)
    task = asyncio.create_task(transport.request("POST", "/", body=bytes(30 * 1024 * 1024)))
    await watched.asked.wait()
    await cancel(task)
    assert transport.open_connections == 0
    await watched.left.wait()


async def test_a_cancelled_call_does_not_wait_for_the_engine_to_take_what_was_written(
    server: RawServer, transport: Transport
) -> None:
    asked = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.head()
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        asked.set()
        await asyncio.Event().wait()

    server.script = script
    task = asyncio.create_task(transport.request("POST", "/", body=bytes(30 * 1024 * 1024)))
    await asked.wait()
    sockets = psutil.Process().num_fds()
    await cancel(task)
    for _ in range(3):
        await asyncio.sleep(0)
    assert psutil.Process().num_fds() == sockets - 1


async def test_a_response_closed_early_closes_its_connection(server: RawServer, transport: Transport) -> None:
    server.script = watched = Watched(CHUNKED + b"1\r\na\r\n")
    response = await transport.request("GET", "/")
    assert await response.read_some() == b"a"
    response.close()
    assert transport.open_connections == 0
    await watched.left.wait()


async def test_a_call_cancelled_while_it_connects_leaves_nothing() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        host, port = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex((host, port))
        transport = Transport(f"http://{host}:{port}")
        task = asyncio.create_task(transport.request("GET", "/"))
        await asyncio.sleep(0)
        assert transport.open_connections == 1
        await cancel(task)
        assert transport.open_connections == 0
        for filler in fillers:
            filler.close()


async def test_cancelling_at_any_step_of_many_calls_leaks_no_connection(
    server: RawServer, connect: Callable[..., Transport]
) -> None:
    transport = connect(max_connections=3)

    async def cancelled_after(steps: int, call: Callable[[], Awaitable[object]]) -> None:
        task = asyncio.ensure_future(call())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    await asyncio.gather(*(cancelled_after(steps % 40, lambda: drain(transport)) for steps in range(400)))
    assert transport.open_connections <= 3
    for _ in range(3):  # every slot still works
        await asyncio.gather(*(drain(transport) for _ in range(3)))
    assert transport.open_connections <= 3

"""How connections are kept, shared, replaced and closed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from raw_server import Peer, RawServer

from adapters import pool
from adapters.errors import Broken, Busy, EngineError, Unreachable
from adapters.transport import Response, Transport


async def ask(transport: Transport) -> bytes:
    response = await transport.request("POST", "/", body=b"x")
    return await response.read()


async def until_closed(transport: Transport) -> None:
    """Returns when the transport has no connection: nothing announces that, and nothing should."""
    while transport.open_connections:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


class Gate:
    """A script that answers each request when it is opened."""

    def __init__(self) -> None:
        self.waiting = 0
        self.opened = asyncio.Semaphore(0)
        self.arrived = asyncio.Semaphore(0)

    async def __call__(self, peer: Peer) -> None:
        while True:
            await peer.request()
            self.arrived.release()
            await self.opened.acquire()
            await peer.answer()


async def test_requests_at_once_use_a_connection_each_and_keep_them(server: RawServer, transport: Transport) -> None:
    server.script = gate = Gate()
    for _ in range(2):
        calls = [asyncio.create_task(ask(transport)) for _ in range(5)]
        for _ in calls:
            await gate.arrived.acquire()
            gate.opened.release()
        assert await asyncio.gather(*calls) == [b"ok"] * 5
    assert server.accepted == transport.open_connections


async def test_beyond_the_limit_requests_wait_for_their_turn(
    server: RawServer, connect: Callable[..., Transport]
) -> None:
    server.script = gate = Gate()
    transport = connect(max_connections=2)
    calls = [asyncio.create_task(ask(transport)) for _ in range(4)]
    for _ in range(2):
        await gate.arrived.acquire()
    assert transport.open_connections == 2
    for _ in calls:
        gate.opened.release()
    assert await asyncio.gather(*calls) == [b"ok"] * 4
    assert server.accepted == 2


async def test_a_turn_that_does_not_come_is_busy(server: RawServer, connect: Callable[..., Transport]) -> None:
    server.script = gate = Gate()
    transport = connect(max_connections=1, connect_timeout_s=0.05)
    first = asyncio.create_task(ask(transport))
    await gate.arrived.acquire()
    with pytest.raises(Busy, match="all 1 connections"):
        await ask(transport)
    gate.opened.release()
    assert await first == b"ok"


async def test_the_queue_for_connections_is_bounded(server: RawServer, connect: Callable[..., Transport]) -> None:
    server.script = gate = Gate()
    transport = connect(max_connections=1)
    calls = [asyncio.create_task(ask(transport)) for _ in range(2)]
    await gate.arrived.acquire()
    with pytest.raises(Busy):
        await ask(transport)
    gate.opened.release()
    gate.opened.release()
    assert await asyncio.gather(*calls) == [b"ok"] * 2


async def test_a_closed_connections_slot_goes_to_the_next_in_line(
    server: RawServer, connect: Callable[..., Transport]
) -> None:
    server.script = gate = Gate()
    transport = connect(max_connections=1)
    first = asyncio.create_task(ask(transport))
    await gate.arrived.acquire()
    second = asyncio.create_task(ask(transport))
    await asyncio.sleep(0)
    first.cancel()
    await gate.arrived.acquire()
    gate.opened.release()
    gate.opened.release()
    assert await second == b"ok"
    assert server.accepted == 2


async def test_whoever_leaves_the_queue_takes_no_slot_along(
    server: RawServer, connect: Callable[..., Transport]
) -> None:
    server.script = gate = Gate()
    transport = connect(max_connections=1)
    first = asyncio.create_task(ask(transport))
    await gate.arrived.acquire()
    second = asyncio.create_task(ask(transport))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)  # the slot is second's now
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert transport.open_connections == 0
    for _ in range(3):
        gate.opened.release()
    assert await ask(transport) == b"ok"


async def test_whoever_leaves_the_queue_makes_room_in_it(server: RawServer, connect: Callable[..., Transport]) -> None:
    server.script = gate = Gate()
    transport = connect(max_connections=1)
    first = asyncio.create_task(ask(transport))
    await gate.arrived.acquire()
    for _ in range(3):
        second = asyncio.create_task(ask(transport))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
    third = asyncio.create_task(ask(transport))
    await asyncio.sleep(0)
    gate.opened.release()
    gate.opened.release()
    assert await asyncio.gather(first, third) == [b"ok", b"ok"]


async def test_a_refused_connection_lets_the_next_in_line_try(
    server: RawServer, connect: Callable[..., Transport]
) -> None:
    transport = connect(max_connections=1)
    server._server.close()
    outcomes = await asyncio.gather(ask(transport), ask(transport), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Unreachable, Unreachable]
    assert transport.open_connections == 0


async def test_an_idle_connection_that_the_engine_closes_is_dropped(server: RawServer, transport: Transport) -> None:
    rests = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.answer()
        await rests.wait()

    server.script = script
    await ask(transport)
    assert transport.open_connections == 1
    rests.set()
    await until_closed(transport)


async def test_an_idle_connection_is_closed_after_its_time(
    server: RawServer, connect: Callable[..., Transport]
) -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.answer()
        await peer.gone()
        left.set()

    server.script = script
    transport = connect(keepalive_s=0.05)
    await ask(transport)
    await left.wait()
    await until_closed(transport)


async def test_the_time_of_an_idle_connection_begins_anew_with_each_use(
    server: RawServer, connect: Callable[..., Transport]
) -> None:
    transport = connect(keepalive_s=0.3)
    for _ in range(10):
        await ask(transport)
        await asyncio.sleep(0.05)
    assert server.accepted == 1


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"


async def first_byte(transport: Transport) -> Response:
    response = await transport.request("POST", "/", body=b"x")
    assert (await response.read_some()).startswith(b"a")
    return response


async def test_a_body_that_is_read_far_enough_gives_its_connection_to_the_next_request_with_its_end(
    server: RawServer, connect: Callable[..., Transport]
) -> None:
    ends = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        await ends.wait()
        await peer.send(b"1\r\nb\r\n0\r\n\r\n")
        await peer.request()
        await peer.answer(b"next")

    server.script = script
    transport = connect(max_connections=1)
    response = await first_byte(transport)
    response.finish()
    response.close()
    assert await response.read_some() == b""
    following = asyncio.create_task(ask(transport))
    ends.set()
    assert await following == b"next"
    assert server.accepted == 1


@pytest.mark.parametrize("trickles", [False, True])
async def test_a_body_without_an_end_is_waited_for_within_a_limit(
    server: RawServer, transport: Transport, monkeypatch: pytest.MonkeyPatch, trickles: bool
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        while trickles:  # until the client's end is closed
            await peer.send(b"1\r\na\r\n")
        await peer.gone()

    server.script = script
    monkeypatch.setattr(pool, "END_LIMIT_S", 0.05)
    (await first_byte(transport)).finish()
    assert transport.open_connections == 1
    await until_closed(transport)


async def test_a_stale_connection_is_replaced_once(server: RawServer, transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.number == 1:
            await peer.answer()
            await peer.request()  # closed when the next request has come: the client cannot know
        else:
            await peer.answer(b"fresh")

    server.script = script
    assert await ask(transport) == b"ok"
    assert await ask(transport) == b"fresh"
    assert server.accepted == 2


async def test_a_stale_connection_is_not_replaced_by_another_old_one(server: RawServer, transport: Transport) -> None:
    arrived = asyncio.Semaphore(0)
    opened = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        arrived.release()
        await opened.wait()
        await peer.answer(b"%d" % peer.number)
        if peer.number <= 2:
            await peer.request()

    server.script = script
    calls = [asyncio.create_task(ask(transport)) for _ in range(2)]
    await arrived.acquire()
    await arrived.acquire()
    opened.set()
    await asyncio.gather(*calls)
    assert await ask(transport) == b"3"


async def test_a_fresh_connection_closed_before_the_answer_is_not_retried(
    server: RawServer, transport: Transport
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.number == 1:
            await peer.answer()
            await peer.request()

    server.script = script
    await ask(transport)
    with pytest.raises(Broken):
        await ask(transport)
    assert server.accepted == 2


async def test_a_request_is_not_sent_again_once_a_byte_of_its_answer_was_seen(
    server: RawServer, transport: Transport
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.answer()
        await peer.request()
        await peer.send(b"H")

    server.script = script
    await ask(transport)
    with pytest.raises(Broken):
        await ask(transport)
    assert server.accepted == 1


async def test_a_request_that_timed_out_on_an_old_connection_is_not_sent_again(
    server: RawServer, connect: Callable[..., Transport]
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.answer()
        await peer.gone()

    server.script = script
    transport = connect(header_timeout_s=0.05)
    await ask(transport)
    with pytest.raises(EngineError, match="did not answer"):
        await ask(transport)
    assert server.accepted == 1


async def test_an_unread_body_that_is_complete_does_not_cost_the_connection(
    server: RawServer, transport: Transport
) -> None:
    for _ in range(3):
        response = await transport.request("GET", "/")
        await response.read_some()
        response.close()
    assert server.accepted == 1


async def test_closing_the_transport_ends_requests_under_way_and_refuses_later_ones(
    server: RawServer, connect: Callable[..., Transport]
) -> None:
    server.script = gate = Gate()
    transport = connect(max_connections=1)
    running = asyncio.create_task(ask(transport))
    await gate.arrived.acquire()
    waiting = asyncio.create_task(ask(transport))
    await asyncio.sleep(0)
    await transport.aclose()
    outcomes = await asyncio.gather(running, waiting, return_exceptions=True)
    assert all(isinstance(outcome, EngineError) for outcome in outcomes)
    with pytest.raises(Unreachable, match="closed"):
        await ask(transport)
    assert transport.open_connections == 0


async def test_a_unix_socket_serves_as_well(tmp_path: Path) -> None:
    async with RawServer(path=tmp_path / "engine.sock") as server:
        transport = Transport(server.url)
        assert await ask(transport) == b"ok"
        await transport.aclose()


def has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6_loopback(), reason="no IPv6 here")
async def test_an_ipv6_address_is_named_in_brackets() -> None:
    host: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()

    async def script(peer: Peer) -> None:
        _, headers, _ = await peer.request()
        host.set_result(headers["host"])
        await peer.answer()

    async with RawServer(host="::1") as server:
        server.script = script
        transport = Transport(server.url)
        assert await ask(transport) == b"ok"
        assert await host == [f"[::1]:{server.port}"]
        await transport.aclose()

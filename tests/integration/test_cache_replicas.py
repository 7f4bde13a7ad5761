"""Gateways that share a real Valkey: one of them asks the engine, the others read along."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import pytest
from valkeys import Valkey

from cache.address import parse_address
from cache.codec import Codec
from cache.flight import Flight, Flights, Reader
from cache.head import Head, decode_head
from cache.key import make_key
from cache.redis_store import RedisStore
from cache.replicas import LeaderGone, Replicas

StartValkey = Callable[..., Valkey]
LIMIT_S = 20.0
KEY = make_key("chat", "m", "ann", {"messages": b"1"})
NAMES = [KEY.entry("fp")]
LEASE = KEY.lease(["fp"])
HEAD = Head("m", "a", "llamacpp", "bf16", True)


class Gateway:
    """One replica, and an engine that gives a piece when told to."""

    def __init__(self, store: RedisStore, codec: Codec) -> None:
        self.store = store
        self.replicas = Replicas(store, codec, lambda error: str(error).encode())
        self.flights = Flights()
        self.engine: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.holder = ""

    async def take_lease(self) -> str:
        """Ask for the lease; returns who has it."""
        self.holder = self.replicas.new_holder()
        return (await self.store.lookup(NAMES, LEASE, self.holder)).holder

    def lead(self) -> Reader:
        flight, reader = self.flights.begin("k", self._drive)
        self.replicas.lead(self.holder, KEY, LEASE, flight)
        return reader

    async def _drive(self, flight: Flight) -> None:
        flight.take_off(HEAD)
        try:
            while (piece := await self.engine.get()) is not None:
                if isinstance(piece, Exception):
                    raise piece
                await flight.add(piece)
        finally:
            self.replicas.release(self.holder)

    def give(self, *pieces: bytes | Exception | None) -> None:
        for piece in pieces:
            self.engine.put_nowait(piece)

    async def follow(self, holder: str, heard: asyncio.Queue[bytes] | None = None) -> bytes:
        """Read another's answer to its end; each part is put into ``heard`` as it comes."""
        answer = b""
        async with aclosing(self.replicas.follow(KEY, LEASE, holder)) as parts:
            async for part in parts:
                if part.kind == "h":
                    assert decode_head(part.data) == HEAD
                elif part.kind == "d":
                    answer += part.data
                    if heard is not None:
                        heard.put_nowait(part.data)
                elif part.data:
                    raise RuntimeError(part.data.decode())
        return answer


@asynccontextmanager
async def gateways(url: str, count: int = 2, keys: dict[str, bytes] | None = None) -> AsyncIterator[list[Gateway]]:
    async with AsyncExitStack() as stack, asyncio.timeout(LIMIT_S):
        made = []
        for _ in range(count):
            store = RedisStore(parse_address(url), lookup_s=5.0)
            store.open()
            stack.push_async_callback(store.aclose)
            while not store.available:  # noqa: ASYNC110 - the store has no event for it, requests never wait
                await asyncio.sleep(0.01)
            made.append(Gateway(store, Codec(keys)))
            stack.push_async_callback(made[-1].replicas.aclose)
            stack.push_async_callback(made[-1].flights.aclose)
        yield made


async def followed(one: Gateway, two: Gateway) -> tuple[Reader, asyncio.Task[bytes]]:
    """Let the first lead, and return its own reader and the second's reading, once the first piece is with both."""
    await one.take_lease()
    reader = one.lead()
    one.give(b"a")
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    following = asyncio.create_task(two.follow(await two.take_lease(), heard))
    await heard.get()
    return reader, following


@pytest.mark.parametrize("keys", [None, {"1": b"k" * 32}])
async def test_a_follower_joins_mid_stream_and_gets_everything_as_it_comes(
    valkey: StartValkey, keys: dict[str, bytes] | None
) -> None:
    server = valkey()
    async with gateways(server.url, keys=keys) as (one, two):
        assert await one.take_lease() == one.holder
        reader = one.lead()
        one.give(b"the ", b"secret ")
        assert await reader.read()
        holder = await two.take_lease()
        assert holder == one.holder
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        following = asyncio.create_task(two.follow(holder, heard))
        assert await heard.get() in (b"the ", b"the secret ")
        one.give(b"answer")
        while await heard.get() != b"answer":
            pass
        assert not following.done()
        with server.client() as client:
            raw = b"".join(fields[b"p"] for _, fields in client.xrange("paceline:" + KEY.flight(holder)))
        assert (b"answer" in raw) is (keys is None)
        one.give(None)
        assert await following == b"the secret answer"


async def test_nothing_is_sent_that_nobody_wants(valkey: StartValkey) -> None:
    server = valkey()
    async with gateways(server.url, 1) as (one,):
        await one.take_lease()
        reader = one.lead()
        one.give(b"a", b"b", None)
        while await reader.read() is not None:
            pass
        await one.store.flush(LIMIT_S)
        assert server.keys("*flight*") == []
        assert server.keys("*lease*") == []


async def test_the_call_goes_on_for_followers_when_the_leaders_client_leaves(valkey: StartValkey) -> None:
    async with gateways(valkey().url) as (one, two):
        reader, following = await followed(one, two)
        reader.flight.leave(reader)
        one.give(b"b", None)
        assert await following == b"ab"


async def test_the_call_ends_when_the_followers_have_left_as_well(valkey: StartValkey) -> None:
    async with gateways(valkey().url) as (one, two):
        reader, following = await followed(one, two)
        reader.flight.leave(reader)
        following.cancel()
        while not reader.flight.done:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert (await two.take_lease()) in (two.holder, one.holder)


async def test_a_dead_leader_is_noticed_before_the_first_byte_and_the_lease_can_be_taken(valkey: StartValkey) -> None:
    async with gateways(valkey().url) as (one, two):
        await one.take_lease()  # and it is never heard of again
        with pytest.raises(LeaderGone):
            await two.follow(await two.take_lease())
        assert await two.take_lease() == two.holder


async def test_a_leader_that_dies_in_mid_answer_is_noticed(valkey: StartValkey) -> None:
    server = valkey()
    async with gateways(server.url) as (one, two):
        _, following = await followed(one, two)
        one.replicas._leads.clear()  # nobody renews it, as when the process were gone
        with server.client() as client:
            client.pexpire("paceline:" + LEASE, 50)
        with pytest.raises(LeaderGone):
            await following


async def test_a_lease_is_renewed_for_as_long_as_the_call_takes(valkey: StartValkey) -> None:
    server = valkey()
    async with gateways(server.url, 1) as (one,):
        await one.take_lease()
        one.lead()
        with server.client() as client:
            client.pexpire("paceline:" + LEASE, 3000)
            while client.pttl("paceline:" + LEASE) <= 3000:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_what_went_wrong_reaches_the_followers(valkey: StartValkey) -> None:
    async with gateways(valkey().url) as (one, two):
        _, following = await followed(one, two)
        one.give(ValueError("the engine died"))
        with pytest.raises(RuntimeError, match="the engine died"):
            await following

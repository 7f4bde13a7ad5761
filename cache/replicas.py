"""One engine call for equal requests to several gateways that share a Redis.

Whoever gets a key's lease asks the engine; the lease runs out unless it is renewed, so that a dead leader is noticed.
Another gateway that wants the same answer leaves word with the leader (a list by the leader's name) and reads a stream
by the name of the lease's holder, into which the leader then puts the answer from its beginning: what nobody asks for
is never sent. A follower repeats its word every second; the leader stops sending when it has not come for a few. What
the leader's client wants as one body is sent when it is whole, since it may have to be asked for once more.

In the stream ``h`` is the head, ``d`` a piece, ``e`` the end: empty, or what went wrong. All are sealed like entries.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from cache.breaker import StoreError
from cache.codec import Codec, Unreadable
from cache.flight import Flight, Reader
from cache.head import Head, encode_head
from cache.key import Key
from cache.redis_store import LEASE_S, MOST_FOLLOWED, RedisStore
from cache.scripts import RELEASE

logger = logging.getLogger("paceline.cache")

RENEW_EVERY_S: Final = 1.0
UNWANTED_AFTER_S: Final = 4.0
_FIRST_WAIT_MS: Final = 100
_LONGEST_WAIT_MS: Final = 1000
_STREAM_LIVES_S: Final = 60
_WORD_LIVES_S: Final = 10


class Part(NamedTuple):
    """One message of a stream: ``kind`` is ``h``, ``d`` or ``e``."""

    kind: str
    data: bytes


class LeaderGone(Exception):
    """The leader has died, or cannot be heard: its lease is gone, and the answer is not whole."""


@dataclass(slots=True)
class _Lead:
    key: Key
    lease: str
    flight: Flight
    is_published: bool = False
    wanted_at: float = 0.0


class Replicas:
    """This gateway among those that share ``store``. ``describe`` returns what followers are told of an error."""

    def __init__(self, store: RedisStore, codec: Codec, describe: Callable[[BaseException], bytes]) -> None:
        self.name = secrets.token_hex(8)
        self._store = store
        self._codec = codec
        self._describe = describe
        self._leads: dict[str, _Lead] = {}
        self._publishers: set[asyncio.Task[None]] = set()
        self._numbers = 0
        self._followed = 0
        self._post: asyncio.Task[None] | None = None

    def new_holder(self) -> str:
        """Return a name to hold a lease by."""
        self._numbers += 1
        return f"{self.name}.{self._numbers}"

    async def aclose(self) -> None:
        """Give back every lease and stop."""
        for holder in tuple(self._leads):
            self.release(holder)
        tasks = [*self._publishers, *([self._post] if self._post is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- leading

    def lead(self, holder: str, key: Key, lease: str, flight: Flight) -> None:
        """Keep a lease that a lookup has given us, until ``release``, and send the flight to whoever wants it."""
        self._leads[holder] = _Lead(key, lease, flight)
        if self._post is None or self._post.done():
            self._post = asyncio.get_running_loop().create_task(self._read_post(), name="cache post")

    def release(self, holder: str, *, is_given_back: bool = False) -> None:
        """Give a lease back, after all that was written before. Whoever follows already gets the rest."""
        lead = self._leads.pop(holder, None)
        if lead is not None and not is_given_back:
            self._store.write("EVAL", RELEASE.text, 1, self._store.prefix + lead.lease, holder)

    async def _read_post(self) -> None:
        """While there are leases: renew them, and wait for word from followers."""
        mailbox = self._mailbox(self.name)
        renewed = time.monotonic()
        while self._leads:
            try:
                word = await self._store.waiting.ask("BLPOP", mailbox, int(RENEW_EVERY_S))
                if word is not None:
                    self._wanted(word[1].decode())
            except StoreError as error:
                logger.debug("cache: followers cannot be heard: %s", error)
                await asyncio.sleep(RENEW_EVERY_S)
            if time.monotonic() - renewed >= RENEW_EVERY_S:
                renewed = time.monotonic()
                for lead in self._leads.values():
                    self._store.write("PEXPIRE", self._store.prefix + lead.lease, int(LEASE_S * 1000))

    def _wanted(self, holder: str) -> None:
        lead = self._leads.get(holder)
        if lead is None:
            return  # it has just been answered: the entry is there, or will be in a moment
        lead.wanted_at = time.monotonic()
        if not lead.is_published and lead.flight.holds_all and not lead.flight.done:
            lead.is_published = True
            reader = lead.flight.join(patient=lead.flight.patient)
            publishing = self._publish(lead, lead.key.flight(holder), reader)
            task = asyncio.get_running_loop().create_task(publishing, name="cache publisher")
            self._publishers.add(task)
            task.add_done_callback(self._publishers.discard)

    async def _publish(self, lead: _Lead, name: str, reader: Reader) -> None:
        """Read the flight as any other reader does, and put it into the stream."""
        head_is_sent = False
        with reader:
            while True:
                left_s = lead.wanted_at + UNWANTED_AFTER_S - time.monotonic()
                try:
                    async with asyncio.timeout(left_s):
                        piece = await reader.read()
                except TimeoutError:
                    if time.monotonic() < lead.wanted_at + UNWANTED_AFTER_S:
                        continue
                    lead.is_published = False
                    return
                except Exception as error:  # noqa: BLE001 - whatever ended the flight is told to those who follow
                    self._send(name, "e", self._describe(error))
                    return
                if piece is None:
                    self._send(name, "e", b"")
                    return
                if not head_is_sent and isinstance(lead.flight.head, Head):
                    head_is_sent = True
                    self._send(name, "h", encode_head(lead.flight.head))
                self._send(name, "d", piece)

    def _send(self, name: str, kind: str, data: bytes) -> None:
        full = self._store.prefix + name
        sealed = self._codec.seal(name, kind.encode() + data, time.time())
        self._store.write("XADD", full, "*", "p", sealed, size=len(sealed))
        self._store.write("EXPIRE", full, _STREAM_LIVES_S)

    # --- following

    async def follow(self, key: Key, lease: str, holder: str) -> AsyncIterator[Part]:
        """Yield the parts of the answer that the lease's holder has made, to its end.

        Raises ``LeaderGone``, or ``StoreError`` where the store fails or too much is followed already.
        """
        if self._followed >= MOST_FOLLOWED:
            raise StoreError("too many answers of other gateways are followed already")
        self._followed += 1
        try:
            async for part in self._follow(key.flight(holder), lease, holder):
                yield part
                if part.kind == "e":
                    return
        finally:
            self._followed -= 1

    async def _follow(self, name: str, lease: str, holder: str) -> AsyncIterator[Part]:
        last, wait_ms, word_at = "0", _FIRST_WAIT_MS, 0.0
        while True:
            if time.monotonic() - word_at >= RENEW_EVERY_S:
                word_at = time.monotonic()
                self._leave_word(holder)
            messages = await self._read(name, last, wait_ms)
            if not messages and not await self._is_held(lease, holder):
                messages = await self._read(name, last, 1)
                if not messages:
                    raise LeaderGone
            wait_ms = _LONGEST_WAIT_MS if messages else min(_LONGEST_WAIT_MS, 2 * wait_ms)
            for id_, fields in messages:
                last = id_.decode()
                yield self._part(name, fields)

    def _leave_word(self, holder: str) -> None:
        mailbox = self._mailbox(holder.partition(".")[0])
        if not self._store.write("RPUSH", mailbox, holder):
            raise StoreError("is not written to at the moment")
        self._store.write("EXPIRE", mailbox, _WORD_LIVES_S)

    async def _read(self, name: str, last: str, wait_ms: int) -> list[tuple[bytes, Any]]:
        full = self._store.prefix + name
        said = await self._store.waiting.ask("XREAD", "COUNT", 256, "BLOCK", wait_ms, "STREAMS", full, last)
        messages: list[tuple[bytes, Any]] = said[0][1] if said else []
        return messages

    async def _is_held(self, lease: str, holder: str) -> bool:
        return bool(await self._store.waiting.ask("GET", self._store.prefix + lease) == holder.encode())

    def _part(self, name: str, fields: Any) -> Part:
        try:
            inside = self._codec.open(name, fields[b"p"])
        except Unreadable as error:
            raise StoreError(f"a part of another gateway's answer {error}") from None
        return Part(chr(inside[0]), inside[1:])

    def _mailbox(self, replica: str) -> str:
        return f"{self._store.prefix}wanted:{replica}"

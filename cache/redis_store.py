"""Entries in Redis or Valkey: looked up within milliseconds or not at all, written in the background."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from cache.address import Address
from cache.batch import Batches
from cache.breaker import Breaker, StoreError
from cache.codec import HEAD_BYTES, Unreadable, created_at
from cache.connection import ANSWER_LIMIT_S, Connection, connect, told, translate
from cache.scripts import KEEP, LOOKUP
from cache.waiting import Waiting
from cache.writer import Writer

LEASE_S: Final = 5.0
"""How long a lease holds unless it is renewed: what a dead leader costs those who wait for it."""
MOST_FOLLOWED: Final = 60
"""Answers of other gateways that are read at once."""
PROBE_LIMIT_S: Final = 1.0
_PER_VALUE_S: Final = 1e-5
_SCAN: Final = 500


class Found(NamedTuple):
    """What a lookup gave. Without ``data``, ``holder`` has the lease: we, another, or nobody (``""``)."""

    name: str
    data: bytes | None
    holder: str


@dataclass(frozen=True, slots=True)
class Kept:
    """An entry as it lies in the store. ``ttl_s`` is ``None`` when it never expires."""

    name: str
    data: bytes
    ttl_s: float | None


class RedisStore:
    """One server, or several that are one. ``prefix`` begins all names; ``lookup_s`` is what a request waits at most.

    It begins as a store that fails: ``open`` returns at once, and requests go on without until it has been reached.
    """

    def __init__(self, address: Address, *, prefix: str = "paceline:", lookup_s: float = 0.02) -> None:
        self.address = address
        self._prefix = prefix
        self._lookup_s = lookup_s
        self.waiting = Waiting(address, MOST_FOLLOWED + 4)
        """For commands that wait, which are not a lookup's to wait for."""
        self._connection: Connection | None = None
        self._batches: Batches | None = None
        self._writer: Writer | None = None
        self.reading = Breaker(f"reading from {address.label}", self._probe_read)
        self.writing = Breaker(f"writing to {address.label}", self._probe_write)

    def open(self) -> None:
        """Begin to connect, in the background."""
        self.reading.trip()

    async def aclose(self) -> None:
        """Write what is queued, for a second at most, and close the connections."""
        await self.reading.aclose()
        await self.writing.aclose()
        if self._writer is not None:
            await self._writer.aclose()
        if self._batches is not None:
            await self._batches.aclose()
        await self.waiting.aclose()
        if self._connection is not None:
            await self._connection.aclose()

    @property
    def available(self) -> bool:
        """Whether lookups are made at the moment."""
        return self._connection is not None and not self.reading.open

    @property
    def prefix(self) -> str:
        """What all names begin with."""
        return self._prefix

    @property
    def dropped(self) -> int:
        """How many writes were given up."""
        return 0 if self._writer is None else self._writer.dropped

    @property
    def connection(self) -> Connection:
        """The connections. Raises ``StoreError`` before it has been reached for the first time."""
        if self._connection is None:
            raise StoreError(self.reading.why or "not connected yet")
        return self._connection

    # --- requests

    async def lookup(self, names: Sequence[str], lease: str = "", holder: str = "") -> Found:
        """Return the first entry there is of ``names``; else who has ``lease``, which becomes ours if it was free.

        Raises ``StoreError`` when the store does not answer in time, or is being left alone.
        """
        keys = [self._prefix + name for name in names]
        keys.append(self._prefix + lease)
        connection = self._ready()
        call = LOOKUP.run(self._batches or connection, keys, holder, int(LEASE_S * 1000), limit_s=self._lookup_s)
        number, value = await self._counted(call)
        if number > 0:
            return Found(names[number - 1], value, "")
        return Found("", None, value.decode())

    async def get_many(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the values of many names, wherever they lie. Raises ``StoreError``."""
        limit_s = self._lookup_s + len(names) * _PER_VALUE_S
        commands = [("GET", self._prefix + name) for name in names]
        values = await self._counted(self._ready().ask_all(commands, limit_s=limit_s))
        return [value if isinstance(value, bytes) else None for value in values]

    def put(self, name: str, data: bytes, ttl_s: float, lease: str = "", holder: str = "") -> bool:
        """Write an entry, soon, and give its lease back in the same step. Returns whether it will be tried."""
        full, ttl_ms = self._prefix + name, max(1, int(ttl_s * 1000))
        if holder:
            command = ("EVAL", KEEP.text, 2, full, self._prefix + lease, data, ttl_ms, holder)
            return self.write(*command, size=len(data))
        return self.write("SET", full, data, "PX", ttl_ms, size=len(data))

    def drop(self, name: str) -> None:
        """Delete an entry, soon."""
        self.write("UNLINK", self._prefix + name)

    def write(self, *command: Any, size: int = 0) -> bool:
        """Send any command, soon and in order. Names in it have the prefix already."""
        return self._writer is not None and self._writer.add(*command, size=size)

    async def flush(self, limit_s: float) -> None:
        """Wait until what was written so far has arrived, for ``limit_s`` at most."""
        if self._writer is not None:
            await self._writer.flush(limit_s)

    def _ready(self) -> Connection:
        if self.reading.open or self._connection is None:
            raise StoreError("is being left alone")
        return self._connection

    async def _counted(self, call: Awaitable[Any]) -> Any:
        try:
            result = await call
        except StoreError as error:
            self.reading.failed(error)
            raise
        self.reading.succeeded()
        return result

    # --- operators

    async def matching(self, pattern: str, most: int) -> list[Kept]:
        """Return up to ``most`` entries whose names match. Raises ``StoreError``."""
        kept: list[Kept] = []
        async for names in self._scan(pattern):
            for name in names[: most - len(kept)]:
                full = self._prefix + name
                data, ttl_ms = await self.connection.ask_all([("GET", full), ("PTTL", full)])
                if isinstance(data, bytes):
                    kept.append(Kept(name, data, ttl_ms / 1000 if ttl_ms >= 0 else None))
            if len(kept) >= most:
                break
        return kept

    async def count(self, pattern: str) -> dict[str, tuple[int, int]]:
        """Return how many entries match and the bytes of their values, by their models' tags. Raises ``StoreError``."""
        counted: dict[str, tuple[int, int]] = {}
        async for names in self._scan(pattern):
            lengths = await self._each("STRLEN", names)
            for name, length in zip(names, lengths, strict=True):
                model = name.split(":")[1]
                entries, size = counted.get(model, (0, 0))
                counted[model] = entries + 1, size + (length if isinstance(length, int) else 0)
        return counted

    async def clear(self, pattern: str, older_than_s: float | None = None) -> int:
        """Delete the entries whose names match and that are older than so many seconds; returns how many.

        Goes through the keys a few hundred at a time and frees their memory beside the server's own work, so that
        nobody waits for it. Raises ``StoreError``.
        """
        before = time.time() - older_than_s if older_than_s is not None else None
        deleted = 0
        async for names in self._scan(pattern):
            if before is not None:
                heads = await self._each("GETRANGE", names, 0, HEAD_BYTES - 1)
                names = [name for name, head in zip(names, heads, strict=True) if _is_older(head, before)]
            deleted += sum(gone for gone in await self._each("UNLINK", names) if isinstance(gone, int))
        return deleted

    async def info(self) -> dict[str, str]:
        """Return what the server says of itself (``INFO``), of a Cluster's first node. Raises ``StoreError``."""
        said = await self.connection.ask("INFO")
        if isinstance(said, dict):
            return {name: str(value) for name, value in (_first_node(said)).items()}
        lines = (line.partition(":") for line in said.decode().splitlines() if ":" in line)
        return {name: value.strip() for name, _, value in lines}

    async def _scan(self, pattern: str) -> AsyncIterator[list[str]]:
        """A few hundred names at a time. One that the server moves meanwhile may come twice."""
        names: list[str] = []
        keys = self.connection.client.scan_iter(match=_escaped(self._prefix) + pattern, count=_SCAN)
        while True:
            with told(ANSWER_LIMIT_S):
                async with asyncio.timeout(ANSWER_LIMIT_S):
                    key = await anext(keys, None)
            if key is not None:
                names.append(key.decode().removeprefix(self._prefix))
            if names and (key is None or len(names) >= _SCAN):
                yield names
                names = []
            if key is None:
                return

    async def _each(self, command: str, names: Iterable[str], *arguments: Any) -> list[Any]:
        return await self.connection.ask_all((command, self._prefix + name, *arguments) for name in names)

    # --- finding out whether it works

    async def _probe_read(self) -> None:
        connection = self._connection
        if connection is None:
            connection = await _connect(self.address)
        try:
            await connection.ask("GET", self._prefix + "probe", limit_s=PROBE_LIMIT_S)
        except BaseException:
            if self._connection is None:
                await connection.aclose()
            raise
        if self._connection is None:
            self._connection = connection
            self._writer = Writer(connection, self.writing)
            self._batches = Batches(connection) if self.address.kind != "cluster" else None

    async def _probe_write(self) -> None:
        await self.connection.ask("SET", self._prefix + "probe", "1", "PX", 1000, limit_s=PROBE_LIMIT_S)


async def _connect(address: Address) -> Connection:
    """Make the client. What is wrong with it (a certificate's file, say) is found out here and by the first probe."""
    try:
        return await asyncio.to_thread(connect, address)
    except (OSError, ValueError) as error:
        raise translate(error) from None


def _is_older(head: object, before: float) -> bool:
    try:
        return isinstance(head, bytes) and created_at(head) < before
    except Unreadable:
        return True  # of another version, or foreign: nobody reads it


def _first_node(said: dict[Any, Any]) -> dict[str, Any]:
    first = next(iter(said.values()), None)
    return first if isinstance(first, dict) else said


def _escaped(prefix: str) -> str:
    return "".join(f"\\{letter}" if letter in "*?[]\\" else letter for letter in prefix)

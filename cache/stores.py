"""The stores together: this process's memory first, then the one that is shared and survives."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cache.breaker import StoreError
from cache.clearings import Clearings
from cache.codec import Codec, Unreadable
from cache.entry import Entry
from cache.key import Key
from cache.memory import MemoryStore
from cache.redis_store import Found, Kept, RedisStore
from cache.statistics import Statistics

logger = logging.getLogger("paceline.cache")

JITTER: Final = 0.1
"""Entries made together do not expire together: a lifetime is up to so much shorter."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What a lookup found out. ``holder`` has the lease, ``""`` when nobody has; ``failed``: there was no answer."""

    entry: Entry | None = None
    name: str = ""
    holder: str = ""
    failed: bool = False


class Stores:
    """Finds and keeps entries. ``max_entry_bytes`` is the largest body that is kept, before compression.

    ``codec`` belongs to ``remote``: there is both, or none.
    """

    def __init__(
        self, memory: MemoryStore, remote: RedisStore | None, codec: Codec | None, *, max_entry_bytes: int = 1 << 20
    ) -> None:
        self.memory = memory
        self.remote = remote
        self._codec = codec
        self._clearings = Clearings(remote, codec, memory) if remote is not None and codec is not None else None
        self.max_entry_bytes = max_entry_bytes
        self.statistics = Statistics()
        self._said: set[str] = set()

    def open(self) -> None:
        """Begin to connect, in the background."""
        if self.remote is not None:
            self.remote.open()
        if self._clearings is not None:
            self._clearings.open()

    async def aclose(self) -> None:
        """Write what is queued, for a second at most, and disconnect."""
        if self._clearings is not None:
            await self._clearings.aclose()
        if self.remote is not None:
            await self.remote.aclose()

    def recall(self, names: Sequence[str], max_age_s: float | None = None) -> Entry | None:
        """Return the first of ``names`` that is in memory and no older than that."""
        for name in names:
            entry = self.memory.get(name)
            if entry is not None and (max_age_s is None or time.time() - entry.created <= max_age_s):
                return entry
        return None

    async def find(
        self, names: Sequence[str], *, max_age_s: float | None = None, lease: str = "", holder: str = ""
    ) -> Answered:
        """Ask the shared store; what it has is in memory from then on. ``holder`` takes the lease where it is free."""
        if self.remote is None:
            return Answered()
        try:
            found = await self.remote.lookup(names, lease, holder)
        except StoreError:
            return Answered(failed=True)
        entry = self._taken_in(found)
        if entry is None or (max_age_s is not None and time.time() - entry.created > max_age_s):
            return Answered(holder=found.holder)
        return Answered(entry, found.name)

    async def find_many(self, names: Sequence[str]) -> list[Entry | None]:
        """Return the entries of many names, each from wherever it is."""
        entries = [self.memory.get(name) for name in names]
        absent = [i for i, entry in enumerate(entries) if entry is None]
        if self.remote is None or not absent:
            return entries
        try:
            values = await self.remote.get_many([names[i] for i in absent])
        except StoreError:
            return entries
        for i, data in zip(absent, values, strict=True):
            entries[i] = self._taken_in(Found(names[i], data, ""))
        return entries

    def keep(self, key: Key, fingerprint: str, entry: Entry, lease: str = "", holder: str = "") -> bool:
        """Keep an entry until it expires, unless it is too large. Returns whether ``lease`` is given back with it."""
        if len(entry.body) > self.max_entry_bytes:
            return False
        name = key.entry(fingerprint)
        self.memory.put(name, entry)
        self.statistics.of(entry.model_name).stored += 1
        if self.remote is None or self._codec is None or not self.remote.available:
            return False
        data, ttl_s = self._codec.pack(name, entry), entry.expires - time.time()
        return self.remote.put(name, data, ttl_s, lease, holder) and bool(holder)

    async def clear(self, pattern: str, older_than_s: float | None = None) -> int:
        """Delete the entries whose names match and that are older than so many seconds; returns how many names.

        Other gateways that share the store hear of it and do the same with their memory. Raises ``StoreError``.
        """
        in_memory = self.memory.clear(pattern, older_than_s)
        if self.remote is None or self._clearings is None:
            return in_memory
        deleted = await self.remote.clear(pattern, older_than_s)
        await self._clearings.tell(pattern, older_than_s)  # afterwards: now nobody finds there what he has just dropped
        return max(in_memory, deleted)

    async def matching(self, pattern: str, most: int) -> dict[str, Entry | str]:
        """Return up to ``most`` entries by name; of one that cannot be read, why. Raises ``StoreError``."""
        found: dict[str, Entry | str] = dict(self.memory.matching(pattern, most))
        for kept in await self.remote.matching(pattern, most) if self.remote is not None else ():
            if len(found) < most:
                found.setdefault(kept.name, self._read(kept))
        return found

    def _read(self, kept: Kept) -> Entry | str:
        assert self._codec is not None
        try:
            return self._codec.unpack(kept.name, kept.data)
        except Unreadable as error:
            return str(error)

    def _taken_in(self, found: Found) -> Entry | None:
        """Unpack what the shared store gave. What cannot be read is deleted there: it is a miss, and said once."""
        if found.data is None or self.remote is None or self._codec is None:
            return None
        try:
            entry = self._codec.unpack(found.name, found.data)
        except Unreadable as error:
            self.remote.drop(found.name)
            if str(error) not in self._said and len(self._said) < 100:
                self._said.add(str(error))
                logger.warning("cache: an entry %s; it is deleted, as others like it will be", error)
            return None
        if entry.expires <= time.time():
            return None
        self.memory.put(found.name, entry)
        return entry


def expiry(ttl_s: float, created: float) -> float:
    """Return when an entry that was made then expires."""
    return created + ttl_s * (1.0 - JITTER * random.random())

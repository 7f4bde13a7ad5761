"""Entries in this process: the least recently used go when the bytes run out."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from fnmatch import fnmatchcase

from cache.entry import Entry


class MemoryStore:
    """A bound number of bytes, by name. ``clock`` gives Unix seconds."""

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._max_bytes = max_bytes
        self._clock = clock
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str) -> Entry | None:
        """Return an entry that has not expired, and count it as used."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        if entry.expires <= self._clock():
            self.drop(name)
            return None
        self._entries.move_to_end(name)
        return entry

    def put(self, name: str, entry: Entry) -> None:
        """Take an entry in; the least recently used ones go. One that is larger than the store is not taken."""
        self.drop(name)
        size = entry.size + len(name)
        if size > self._max_bytes:
            return
        self._entries[name] = entry
        self.bytes += size
        while self.bytes > self._max_bytes:
            self._forget(*self._entries.popitem(last=False))

    def drop(self, name: str) -> None:
        """Forget an entry, if it is there."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._forget(name, entry)

    def clear(self, pattern: str, older_than_s: float | None = None) -> int:
        """Drop the entries whose names match, and that are older than so many seconds. Returns how many."""
        before = self._clock() - older_than_s if older_than_s is not None else None
        names = [
            name
            for name, entry in self._entries.items()
            if fnmatchcase(name, pattern) and (before is None or entry.created < before)
        ]
        for name in names:
            self.drop(name)
        return len(names)

    def matching(self, pattern: str, most: int) -> list[tuple[str, Entry]]:
        """Return up to ``most`` entries whose names match."""
        found = ((name, entry) for name, entry in self._entries.items() if fnmatchcase(name, pattern))
        return [each for each, _ in zip(found, range(most), strict=False)]

    def _forget(self, name: str, entry: Entry) -> None:
        self.bytes -= entry.size + len(name)

"""What has to happen in one step on the server, in Lua. All keys of one call are in one slot of a cluster."""

from __future__ import annotations

import hashlib
from typing import Any, Final, Protocol

from cache.connection import UnknownScript


class Asks(Protocol):
    """What sends one command."""

    async def ask(self, *command: Any, limit_s: float) -> Any:
        """Return the command's result. Raises ``StoreError``."""


class Script:
    """Runs by its digest, and in full where the server does not know it yet."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    async def run(self, connection: Asks, keys: list[str], *arguments: Any, limit_s: float) -> Any:
        """Return the script's result. Raises ``StoreError``."""
        try:
            return await connection.ask("EVALSHA", self._digest, len(keys), *keys, *arguments, limit_s=limit_s)
        except UnknownScript:
            return await connection.ask("EVAL", self.text, len(keys), *keys, *arguments, limit_s=limit_s)


LOOKUP: Final = Script("""
local entries = #KEYS - 1
for i = 1, entries do
  local found = redis.pcall('GET', KEYS[i])
  if type(found) == 'string' then return {i, found} end
end
if ARGV[1] == '' then return {0, ''} end
local lease = KEYS[entries + 1]
local holder = redis.pcall('GET', lease)
if type(holder) == 'string' then return {-1, holder} end
local taken = redis.pcall('SET', lease, ARGV[1], 'NX', 'PX', ARGV[2])
if type(taken) == 'table' and taken.ok then return {0, ARGV[1]} end
return {0, ''}
""")
"""KEYS: entries, best first, and a lease. ARGV: who wants the lease (nobody: ''), for how many ms.

Returns ``{n, value}`` for the n-th entry; else ``{0, us}`` when the lease is ours now, ``{-1, holder}`` when it is
another's, and ``{0, ''}`` when nobody wanted it or it cannot be had (a read-only server, a full one)."""

RELEASE: Final = Script("""
if redis.pcall('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
""")
"""KEYS: a lease. ARGV: its holder, who gives it back."""

KEEP: Final = Script("""
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if redis.pcall('GET', KEYS[2]) == ARGV[3] then redis.call('DEL', KEYS[2]) end
return 1
""")
"""KEYS: an entry and its lease. ARGV: the value, how many ms it lives, and the lease's holder, who gives it back."""

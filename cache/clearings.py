"""What one gateway clears, the others that share its store drop from their memory.

A clearing is a message in a stream in the store, which holds the last thousand. Each gateway waits for the next one, on
a connection that no request needs, so that it hears of it at once; one that was cut off reads what it has missed. A
server that has lost the stream begins a new one, which is read from its beginning: to clear twice does no harm.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Final

import msgspec

from cache.breaker import StoreError
from cache.codec import Codec, Unreadable
from cache.memory import MemoryStore
from cache.redis_store import RedisStore
from cache.tasks import end

logger = logging.getLogger("paceline.cache")

MOST_KEPT: Final = 1000
_WAIT_MS: Final = 3000
_AGAIN_AFTER_S: Final = 1.0
_BEGINNING: Final = b"0-0"


class Clearing(msgspec.Struct, array_like=True, frozen=True):
    """Entries whose names match, made before that (Unix seconds) where it is given."""

    pattern: str
    before: float | None


class Clearings:
    """Tells of clearings, and makes those in ``memory`` that others tell of."""

    def __init__(self, store: RedisStore, codec: Codec, memory: MemoryStore) -> None:
        self._store = store
        self._codec = codec
        self._memory = memory
        self._name = store.prefix + "cleared"
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to listen, in the background. Idempotent."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._listen(), name="cache clearings")

    async def aclose(self) -> None:
        """Stop listening."""
        await end(self._task)

    async def tell(self, pattern: str, older_than_s: float | None) -> None:
        """Have all others clear this. Raises ``StoreError``."""
        now = time.time()
        clearing = Clearing(pattern, None if older_than_s is None else now - older_than_s)
        sealed = self._codec.seal(self._name, _encode(clearing), now)
        await self._store.connection.ask("XADD", self._name, "MAXLEN", "~", MOST_KEPT, "*", "c", sealed)

    async def _listen(self) -> None:
        last, is_sure = _BEGINNING, False
        while True:
            if not self._store.available:
                is_sure = False
                await asyncio.sleep(_AGAIN_AFTER_S)
                continue
            try:
                if not is_sure:
                    last, is_sure = await self._where_to_begin(last), True
                messages = await self._store.waiting.ask("XREAD", "BLOCK", _WAIT_MS, "STREAMS", self._name, last)
            except StoreError as error:
                logger.debug("cache: what others clear cannot be heard: %s", error)
                is_sure = False
                await asyncio.sleep(_AGAIN_AFTER_S)
                continue
            for id_, fields in messages[0][1] if messages else ():
                last = id_
                self._clear(fields)

    async def _where_to_begin(self, last: bytes) -> bytes:
        """After what was read last, unless the server has begun anew."""
        newest = await self._store.waiting.ask("XREVRANGE", self._name, "+", "-", "COUNT", 1)
        return last if newest and _number(newest[0][0]) >= _number(last) else _BEGINNING

    def _clear(self, fields: Any) -> None:
        try:
            clearing = _decode(self._codec.open(self._name, fields.get(b"c", b"")))
        except (Unreadable, msgspec.DecodeError) as error:
            logger.debug("cache: what another gateway cleared is not known: %s", error)
            return
        before = clearing.before
        self._memory.clear(clearing.pattern, None if before is None else time.time() - before)


def _number(id_: bytes) -> tuple[int, int]:
    """A stream's ids in their order: milliseconds, and a number within one."""
    milliseconds, _, number = id_.partition(b"-")
    return int(milliseconds), int(number)


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Clearing).decode

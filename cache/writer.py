"""What is written to a store: in the background, in order, within bounds, several commands at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import Any, Final

from cache.breaker import Breaker, StoreError
from cache.connection import Connection, translate
from cache.tasks import end

logger = logging.getLogger("paceline.cache")

MOST_JOBS: Final = 4096
MOST_BYTES: Final = 64 << 20
BATCH: Final = 64

Command = tuple[Any, ...]


class Writer:
    """One task that empties the queue. What finds it full, or the store failing, is dropped: it is only a cache.

    ``breaker`` is told how they go.
    """

    def __init__(self, connection: Connection, breaker: Breaker) -> None:
        self._connection = connection
        self._breaker = breaker
        self._jobs: deque[tuple[int, Command]] = deque()
        self._bytes = 0
        self._waiting = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.dropped = 0
        self._task = asyncio.get_running_loop().create_task(self._run(), name="cache writer")

    def add(self, *command: Any, size: int = 0) -> bool:
        """Queue a command of about ``size`` bytes. Returns whether it was taken."""
        if self._breaker.open or len(self._jobs) >= MOST_JOBS or self._bytes + size > MOST_BYTES:
            self.dropped += 1
            return False
        self._jobs.append((size, command))
        self._bytes += size
        self._waiting.set()
        self._idle.clear()
        return True

    async def flush(self, limit_s: float) -> None:
        """Wait until everything is written or dropped, for ``limit_s`` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._idle.wait()

    async def aclose(self, limit_s: float = 1.0) -> None:
        """Write what is queued, within ``limit_s``, and stop."""
        await self.flush(limit_s)
        await end(self._task)

    async def _run(self) -> None:
        while True:
            await self._waiting.wait()
            commands: list[Command] = []
            while self._jobs and len(commands) < BATCH:
                size, command = self._jobs.popleft()
                self._bytes -= size
                commands.append(command)
            await self._write(commands)
            if not self._jobs:
                self._waiting.clear()
                self._idle.set()

    async def _write(self, commands: list[Command]) -> None:
        if self._breaker.open:
            self.dropped += len(commands)
            return
        try:
            if len(commands) == 1:
                await self._connection.ask(*commands[0])
            else:
                results = await self._connection.ask_all(commands)
                if refused := [each for each in results if isinstance(each, BaseException)]:
                    self.dropped += len(refused) - 1
                    raise translate(refused[0])
            self._breaker.succeeded()
        except StoreError as error:
            self.dropped += 1
            self._breaker.failed(error)
        except Exception as error:
            # The task's outermost edge: whatever a client's library does, requests go on and writes are tried again.
            logger.exception("writing to the cache failed")
            self._breaker.failed(StoreError(type(error).__name__))

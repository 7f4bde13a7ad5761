"""Live traffic has priority: how a measurement waits for it, and makes way for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

IDLE_LIMIT_S = 60.0
"""How long a measurement waits for quiet."""

REPEATS = 2
"""So often it gives way to live traffic before it gives up."""

T = TypeVar("T")


class Disturbed(Exception):
    """There was live traffic, so the measurement was given up."""


class Traffic:
    """The live requests on one piece of hardware, as a measurement there has to see them.

    Whoever serves them calls ``begin`` and ``end``, on the event loop's thread.
    """

    def __init__(self) -> None:
        self._running = 0
        self._begun = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._busy = asyncio.Event()

    def begin(self) -> None:
        """A live request starts."""
        self._running += 1
        self._begun += 1
        self._idle.clear()
        self._busy.set()

    def end(self) -> None:
        """A live request that ``begin`` announced is over."""
        self._running -= 1
        if not self._running:
            self._busy.clear()
            self._idle.set()

    @property
    def running(self) -> int:
        """Live requests at this moment."""
        return self._running

    @property
    def begun(self) -> int:
        """Live requests so far: the same number twice, and none running, means that none ran in between."""
        return self._begun

    async def idle(self, limit_s: float) -> bool:
        """Wait until no live request runs; False when that took more than ``limit_s``."""
        try:
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def quietly(self, work: Callable[[], Coroutine[Any, Any, T]], *, idle_limit_s: float = IDLE_LIMIT_S) -> T:
        """Return what ``work`` returns when no live request runs beside it.

        Waits for quiet, at most ``idle_limit_s``; when a live request begins, ``work`` is cancelled and later begun
        anew. Raises ``Disturbed`` when there was no quiet, or not for long enough, ``REPEATS`` times.
        """
        for _ in range(REPEATS):
            if not await self.idle(idle_limit_s):
                break
            with suppress(Disturbed):
                return await self.give_way(work())
        raise Disturbed

    async def give_way(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` returns. Raises ``Disturbed``, with ``work`` cancelled, once a live request runs."""
        task = asyncio.ensure_future(work)
        busy = asyncio.ensure_future(self._busy.wait())
        try:
            await asyncio.wait((task, busy), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Disturbed
            return task.result()
        finally:
            task.cancel()
            busy.cancel()
            await asyncio.gather(task, busy, return_exceptions=True)

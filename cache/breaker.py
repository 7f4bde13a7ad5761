"""Leaves a store alone that fails, looks after it meanwhile, and says each change once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from cache.tasks import end

logger = logging.getLogger("paceline.cache")

FAILURES_TO_OPEN: Final = 5
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 5.0
"""No longer, so that a store that has returned is used again within seconds."""


class StoreError(Exception):
    """The store did not do what it was asked, or not in time. The message is for a log, and holds no secret."""


class Breaker:
    """Opens after five failures in a row. Then a task of its own, not a request, finds out when it may close.

    ``what`` completes "cache: …" ("reading from Redis"); ``probe`` raises ``StoreError`` as long as it still fails, and
    has a limit of its own.
    """

    def __init__(self, what: str, probe: Callable[[], Awaitable[None]]) -> None:
        self._what = what
        self._probe = probe
        self._failures = 0
        self._said = False
        self._task: asyncio.Task[None] | None = None
        self.open = False
        self.why = ""
        """The last failure, while it is open."""

    def succeeded(self) -> None:
        """The store has answered."""
        self._failures = 0

    def failed(self, error: StoreError) -> None:
        """The store has failed."""
        self._failures += 1
        self.why = str(error)
        if self._failures >= FAILURES_TO_OPEN and not self.open:
            self._say()
            self.trip()

    def trip(self) -> None:
        """Open now; a store that has never been reached begins so."""
        if not self.open:
            self.open = True
            self._task = asyncio.get_running_loop().create_task(self._until_it_works(), name=f"cache: {self._what}")

    async def aclose(self) -> None:
        """Stop looking."""
        await end(self._task)
        self._task = None

    async def _until_it_works(self) -> None:
        """Probe at growing intervals. A store that works at the first probe, as it does at the start, is not news."""
        pause_s = 0.0
        while True:
            try:
                await self._probe()
                break
            except StoreError as error:
                self.why = str(error)
            self._say()
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s) or FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
        self._failures = 0
        self.why = ""
        self.open = False
        if self._said:
            self._said = False
            logger.warning("cache: %s works again", self._what)

    def _say(self) -> None:
        if not self._said:
            self._said = True
            logger.warning("cache: %s fails, requests go on without: %s", self._what, self.why)

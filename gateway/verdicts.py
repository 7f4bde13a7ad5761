"""What quality regressions and soaks have found, taken up by a gateway that runs."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from cache.tasks import end
from measure.async_store import AsyncStore
from measure.database import StoreError
from measure.verdicts import Judged, combine

if TYPE_CHECKING:
    from gateway.fleet import Fleet

logger = logging.getLogger("paceline.verdicts")

LOOK_EVERY_S = 5.0


class Verdicts:
    """Looks into the record store, where `paceline quality` and `paceline soak` leave their verdicts."""

    def __init__(self, fleet: Fleet, store: AsyncStore) -> None:
        self._fleet = fleet
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self._failed = False

    async def start(self) -> None:
        """Take up what is there, then go on looking in the background."""
        await self.look()
        self._task = asyncio.get_running_loop().create_task(self._watch(), name="verdicts")

    async def look(self) -> None:
        """Take up what is there now. A store that cannot be read leaves things as they are, with one log line."""
        try:
            quality = await self._store.load_verdicts(Judged.QUALITY)
            stability = await self._store.load_verdicts(Judged.STABILITY)
        except StoreError as error:
            if not self._failed:
                logger.warning("verdicts cannot be read: %s", error)
            self._failed = True
            return
        self._failed = False
        self._fleet.judge(combine(quality, stability))

    async def aclose(self) -> None:
        """Stop looking."""
        await end(self._task)
        self._task = None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.look()

"""Live traffic that other processes serve: a benchmark sees it by looking, and gives way to it all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from measure.traffic import Disturbed, Traffic

T = TypeVar("T")

LOOK_S = 1.0
"""How often it is looked for live traffic while a measurement runs, or while one waits."""
_SETTLE_S = 0.3
OURS_S = 5.0
"""An engine's gauges may still count for a moment what has just ended, and for seconds what was cancelled."""

Look = Callable[[], Awaitable[str]]
"""Says what live traffic there is, in words for a person; "" for none."""


class OutsideTraffic(Traffic):
    """The live requests on one piece of hardware, as far as gauges tell.

    ``gauges`` counts all requests, so that it is asked only while the measurement has none in flight; ``live`` counts
    those of others alone. ``waiting`` is told what a measurement waits for, and "" when it waits no longer.
    """

    def __init__(self, gauges: Look, live: Look, waiting: Callable[[str], None]) -> None:
        super().__init__()
        self._gauges = gauges
        self._live = live
        self._waiting = waiting
        self.seen = ""
        """The traffic that was there when it was last looked for."""

    @property
    def running(self) -> int:
        return 1 if self.seen else 0

    async def idle(self, limit_s: float) -> bool:
        """Look until nothing runs; False when that took more than ``limit_s``."""
        return await self._wait(limit_s, self._waiting)

    async def _wait(self, limit_s: float, tell: Callable[[str], None]) -> bool:
        clock = asyncio.get_running_loop().time
        end, pause_s, told = clock() + limit_s, _SETTLE_S, False
        while await self._look():
            if clock() + pause_s > end:
                return False
            if pause_s > _SETTLE_S:
                told = True
                tell(self.seen)
            await asyncio.sleep(pause_s)
            pause_s = LOOK_S
        if told:
            tell("")
        return True

    async def give_way(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` returns. Raises ``Disturbed`` when there is live traffic beside it: ``work`` is
        cancelled as soon as that is seen, and of no use when it is seen afterwards."""
        task, busy = asyncio.ensure_future(work), asyncio.ensure_future(self._until_busy())
        try:
            await asyncio.wait((task, busy), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Disturbed
            result = task.result()
            if not await self._wait(OURS_S, lambda reason: None):
                raise Disturbed
            return result
        finally:
            task.cancel()
            busy.cancel()
            await asyncio.gather(task, busy, return_exceptions=True)

    async def look(self) -> bool:
        """Look now, while the measurement has nothing in flight. Returns whether there is live traffic."""
        return bool(await self._look())

    async def _look(self) -> str:
        self.seen = await self._live() or await self._gauges()
        if self.seen:
            self._begun += 1
        return self.seen

    async def _until_busy(self) -> None:
        while True:
            if seen := await self._live():
                self.seen = seen
                self._begun += 1
                return
            await asyncio.sleep(LOOK_S)

"""Engines that have nothing to do and keep a core busy for a moment all the same, waiting for the next request."""

from __future__ import annotations

import asyncio
from collections.abc import KeysView

from policies.ledger import Ledger


class Lingering:
    """The deployments where that is so now. On an accelerator it disturbs nobody: those are not to be told here."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def ids(self) -> KeysView[str]:
        """Their ids, as they are at any time."""
        return self._timers.keys()

    def left_s(self, id_: str, now: float) -> float:
        """Return for how long it will be so, 0 where it is not."""
        timer = self._timers.get(id_)
        return 0.0 if timer is None else max(0.0, timer.when() - now)

    def begin(self, id_: str, seconds: float) -> None:
        """A deployment has given an answer, and lingers unless it has others to give."""
        if not self._ledger.view(id_).inflight:
            self.end(id_)
            loop = asyncio.get_running_loop()
            self._ledger.linger(id_, loop.time(), lingers=True)
            self._timers[id_] = loop.call_later(seconds, self.end, id_)

    def end(self, id_: str) -> None:
        """It has work again, or is quiet; nothing happens where it did not linger."""
        timer = self._timers.pop(id_, None)
        if timer is not None:
            timer.cancel()
            self._ledger.linger(id_, asyncio.get_running_loop().time(), lingers=False)

    def close(self) -> None:
        """Forget all of them."""
        for id_ in tuple(self._timers):
            self.end(id_)

"""Carries what the engine's thread tells to the event loop, with one call for all that was told meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any


class Courier:
    """Puts things that another thread hands over into queues of one event loop, in their order.

    To wake the loop for each token of each answer costs as much as a tenth of a step of eight.
    """

    def __init__(self) -> None:
        self._under_way: deque[tuple[asyncio.Queue[Any], object]] = deque()
        self._called = False

    def carry(self, loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[Any], told: object) -> None:
        """Put ``told`` into an unbounded queue of ``loop`` soon. Raises RuntimeError when the loop is closed."""
        self._under_way.append((queue, told))
        if self._called:
            return
        self._called = True
        try:
            loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            self._called = False
            self._under_way.clear()
            raise

    def _deliver(self) -> None:
        self._called = False  # before the last one is taken: what comes from now on calls again
        while self._under_way:
            queue, told = self._under_way.popleft()
            queue.put_nowait(told)

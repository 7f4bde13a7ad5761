"""What this machine did lately: one look a second while there is traffic, in a bounded ring."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from cache.tasks import end
from policies.diagnosis.case import Resources

logger = logging.getLogger("paceline.requests")

EVERY_S = 1.0
KEPT = 900
"""Looks that are kept: a quarter of an hour."""
_AROUND_S = 1.5
"""A look so near to a request's beginning or end counts for it."""

N = TypeVar("N", int, float)


class ResourceWatch:
    """Takes samples with ``look`` while ``is_busy``; ``add`` takes one from elsewhere. Times are ``loop.time()``."""

    def __init__(self, look: Callable[[], Resources], is_busy: Callable[[], bool]) -> None:
        self._look = look
        self._is_busy = is_busy
        self._samples: deque[tuple[float, Resources]] = deque(maxlen=KEPT)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.get_running_loop().create_task(self._watch(), name="resources")

    async def aclose(self) -> None:
        """Stop."""
        await end(self._task)
        self._task = None

    def add(self, at: float, sample: Resources) -> None:
        """Keep a sample."""
        self._samples.append((at, sample))

    def between(self, begun: float, ended: float) -> Resources | None:
        """Return the worst of the samples of a time; ``None`` when there is none."""
        seen = []
        for at, sample in reversed(self._samples):
            if at < begun - _AROUND_S:
                break
            if at <= ended + _AROUND_S:
                seen.append(sample)
        return worst(seen)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._is_busy():
                try:
                    sample = await asyncio.to_thread(self._look)
                except Exception:
                    logger.exception("this machine's resources cannot be read, and are not looked at any more")
                    return
                self.add(loop.time(), sample)
            await asyncio.sleep(EVERY_S)


def worst(samples: list[Resources]) -> Resources | None:
    """Return one for all: the least that was left, the most that was taken, the mean use of processors and GPU."""
    if not samples:
        return None
    return Resources(
        samples=len(samples),
        memory_bytes=_most(each.memory_bytes for each in samples),
        memory_available_bytes=min(_known(each.memory_available_bytes for each in samples), default=None),
        swap_used_bytes=_most(each.swap_used_bytes for each in samples),
        swapped_bytes_per_s=_most(each.swapped_bytes_per_s for each in samples),
        memory_stall=_most(each.memory_stall for each in samples),
        disk_stall=_most(each.disk_stall for each in samples),
        cpu_stall=_most(each.cpu_stall for each in samples),
        busy_cores=_mean(each.busy_cores for each in samples),
        cores=_most(each.cores for each in samples),
        gpu_use=_mean(each.gpu_use for each in samples),
        gpu_memory_bytes=_most(each.gpu_memory_bytes for each in samples),
        gpu_memory_used_bytes=_most(each.gpu_memory_used_bytes for each in samples),
        gpu_slowed=_any(each.gpu_slowed for each in samples),
    )


def _known(values: Iterable[N | None]) -> list[N]:
    return [each for each in values if each is not None]


def _most(values: Iterable[N | None]) -> N | None:
    return max(_known(values), default=None)


def _any(values: Iterable[bool | None]) -> bool | None:
    known = [each for each in values if each is not None]
    return any(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return sum(known) / len(known) if known else None

"""Watches this machine and an engine's processes while a cell is measured."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from adapters.gpus import gpu_memory, slowed_gpus
from adapters.hardware import hardware_facts
from adapters.process import cpu_seconds, family, peak_bytes, resident_bytes
from measure.cpu import CpuUse
from measure.machine import Machine, why_busy

SAMPLE_S = 1.0
_THROTTLES = "cpu*/thermal_throttle/package_throttle_count"
_CPUS = Path("/sys/devices/system/cpu")


class HostWatch:
    """Reads once a second, in a thread, while the block runs; afterwards its properties say what was seen.

    ``pid`` returns the engine's process, ``None`` where it is hidden or on another machine: then there is nothing to
    be said about its memory, nor about who else used the processors. For an engine that is not ``here`` the state of
    this machine says nothing, and there is none. ``beside`` are the processes of engines that are made to work beside
    it: what they use is a part of the measurement, not a disturbance.
    """

    def __init__(
        self, pid: Callable[[], int | None], *, here: bool = True, beside: Sequence[Callable[[], int | None]] = ()
    ) -> None:
        self._pid = pid
        self._measured = (pid, *beside)
        self._here = here
        self.machine: Machine | None = None
        """The state of this machine, once the block is over."""
        self.peak_memory_bytes: int | None = None
        self.peak_gpu_memory_bytes: int | None = None
        self._high_water: dict[int, int] = {}
        self._throttled: bool | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> HostWatch:
        if self._here:
            await asyncio.to_thread(self._begin)
            self._task = asyncio.create_task(self._watch(), name="host watch")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if error is None and self._here:
            await asyncio.to_thread(self._end)

    async def _watch(self) -> None:
        while True:
            await asyncio.to_thread(self._sample)
            await asyncio.sleep(SAMPLE_S)

    def _begin(self) -> None:
        self._at = time.monotonic()
        self._swap = _swap_bytes()
        self._throttles = _throttle_count()
        self._cpu = CpuUse()
        self._ours = cpu_seconds(os.getpid())
        self._roots = self._present_roots()
        self._engines = _cpu_seconds_of_families(self._roots)
        self._high_water = {pid: peak_bytes(pid) or 0 for pid in self._family()}

    def _sample(self) -> None:
        pids = self._family()
        resident = [size for pid in pids if (size := resident_bytes(pid)) is not None]
        self._raise_peak(sum(resident) if resident else None)
        on_gpus = [size for size in gpu_memory(pids).values() if size is not None]
        if on_gpus:
            self.peak_gpu_memory_bytes = max(sum(on_gpus), self.peak_gpu_memory_bytes or 0)
        slowed = slowed_gpus()
        if slowed is not None:
            self._throttled = slowed or self._throttled or False

    def _end(self) -> None:
        self._sample()
        # Between two samples there may have been more; a high-water mark that has risen is of this time.
        marks = {pid: peak_bytes(pid) or 0 for pid in self._family()}
        if marks and any(mark > self._high_water.get(pid, 0) for pid, mark in marks.items()):
            self._raise_peak(sum(marks.values()))
        throttles = _throttle_count()
        if throttles is not None and self._throttles is not None:
            self._throttled = throttles > self._throttles or self._throttled or False
        swap, frequency, most = _swap_bytes(), *_megahertz()
        grown = None if swap is None or self._swap is None else max(0, swap - self._swap)
        machine = Machine(
            cores=hardware_facts().usable_cores,
            load_average=_load_average(),
            others_cores=self._others_cores(),
            swap_used_bytes=swap,
            swap_grown_bytes=grown,
            cpu_mhz=frequency,
            cpu_mhz_most=most,
            throttled=self._throttled,
        )
        self.machine = replace(machine, busy=why_busy(machine))

    def _others_cores(self) -> float | None:
        took_s = time.monotonic() - self._at
        busy = self._cpu.read()
        # Without its children: the engine may be one of them.
        ours, engines = cpu_seconds(os.getpid()), _cpu_seconds_of_families(self._roots)
        if None in (ours, engines, self._ours, self._engines) or self._roots != self._present_roots() or took_s <= 0:
            return None  # an engine is hidden, or was started anew: nobody can tell who used what
        known_s = (ours or 0.0) - (self._ours or 0.0) + (engines or 0.0) - (self._engines or 0.0)
        return max(0.0, busy - known_s / took_s)

    def _present_roots(self) -> frozenset[int | None]:
        """The engines' processes, each once; with ``None`` where one is hidden."""
        return frozenset(pid() for pid in self._measured)

    def _family(self) -> frozenset[int]:
        pid = self._pid()
        return frozenset() if pid is None else family(pid)

    def _raise_peak(self, size: int | None) -> None:
        if size is not None:
            self.peak_memory_bytes = max(size, self.peak_memory_bytes or 0)


def _cpu_seconds_of_families(roots: frozenset[int | None]) -> float | None:
    """CPU seconds of processes with their children; ``None`` when one of the roots is hidden or gone."""
    if None in roots or any(cpu_seconds(root) is None for root in roots if root is not None):
        return None
    pids = {each for root in roots if root is not None for each in family(root)}
    return sum(seconds for each in pids if (seconds := cpu_seconds(each)) is not None)


def _swap_bytes() -> int | None:
    with contextlib.suppress(OSError, psutil.Error, RuntimeError):
        return int(psutil.swap_memory().used)
    return None


def _load_average() -> float | None:
    with contextlib.suppress(OSError):
        return psutil.getloadavg()[0]
    return None


def _megahertz() -> tuple[float | None, float | None]:
    """The processors' present mean frequency and the highest that they can do."""
    frequency: Any = None  # the stubs do not say that there may be none
    with contextlib.suppress(OSError, NotImplementedError, RuntimeError):
        frequency = psutil.cpu_freq()
    return (frequency.current or None, frequency.max or None) if frequency else (None, None)


def _throttle_count() -> int | None:
    """How often the processors have slowed down for heat since the machine started. Linux on hardware of its own."""
    counts = []
    for file in _CPUS.glob(_THROTTLES):
        with contextlib.suppress(OSError, ValueError):
            counts.append(int(file.read_text()))
    return max(counts, default=None)

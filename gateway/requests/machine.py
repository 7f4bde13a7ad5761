"""One look at this machine: memory, swap, waits (Linux's pressure stall information), processors and GPUs."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil

from adapters.gpus import gpu_loads, slowed_gpus
from adapters.hardware import hardware_facts
from measure.cpu import CpuUse
from policies.diagnosis.case import Resources

_PRESSURE = Path("/proc/pressure")
_LONGEST_S = 5.0
"""Two looks that are further apart say nothing of the last second: the system's own mean of 10 s is taken then."""


class Machine:
    """Looks when it is called; each call asks the system for some milliseconds, in a thread."""

    def __init__(self, pressure: Path = _PRESSURE) -> None:
        self._pressure = pressure
        self._at = 0.0
        self._stalled_us: dict[str, int] = {}
        self._swapped = 0
        self._cpu = CpuUse()

    def __call__(self) -> Resources:
        """Return what it sees; ``None`` where the system does not say."""
        now = time.monotonic()
        passed_s = now - self._at if self._at and now - self._at <= _LONGEST_S else None
        self._at = now
        memory, swap = psutil.virtual_memory(), _swap()
        swapped_s = None
        if swap is not None:
            moved, self._swapped = swap[1] - self._swapped, swap[1]
            swapped_s = max(0.0, moved / passed_s) if passed_s else None
        gpus = gpu_loads()
        fullest = max(gpus, key=lambda gpu: (gpu.used_bytes or 0) / (gpu.whole_bytes or 1), default=None)
        return Resources(
            samples=1,
            memory_bytes=memory.total,
            memory_available_bytes=memory.available,
            swap_used_bytes=None if swap is None else swap[0],
            swapped_bytes_per_s=swapped_s,
            memory_stall=self._stall("memory", passed_s),
            disk_stall=self._stall("io", passed_s),
            cpu_stall=self._stall("cpu", passed_s),
            busy_cores=round(self._cpu.read(), 2),
            cores=hardware_facts().usable_cores,
            gpu_use=None if fullest is None else fullest.use,
            gpu_memory_bytes=None if fullest is None else fullest.whole_bytes,
            gpu_memory_used_bytes=None if fullest is None else fullest.used_bytes,
            gpu_slowed=slowed_gpus() if gpus else None,
        )

    def _stall(self, what: str, passed_s: float | None) -> float | None:
        """The share of the time since the last look in which some process waited for that."""
        try:
            line = (self._pressure / what).read_text().splitlines()[0]
            fields = dict(field.split("=") for field in line.split()[1:])
            stalled_us = int(fields["total"])
            before_us, self._stalled_us[what] = self._stalled_us.get(what), stalled_us
            if passed_s is None or before_us is None:
                return float(fields["avg10"]) / 100
        except (OSError, ValueError, KeyError, IndexError):
            return None
        return min(1.0, max(0.0, (stalled_us - before_us) / 1e6 / passed_s))


def _swap() -> tuple[int, int] | None:
    """Bytes in the swap, and those that ever went to it or came from it."""
    with contextlib.suppress(OSError, psutil.Error, RuntimeError):
        swap = psutil.swap_memory()
        return int(swap.used), int(swap.sin + swap.sout)
    return None

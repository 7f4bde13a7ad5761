"""How busy this machine's processors are, and a wait until a measurement would have them to itself."""

from __future__ import annotations

import asyncio
import time

import psutil

from adapters.hardware import hardware_facts

QUIET_LIMIT_S = 8.0
"""How long a measurement waits for idle cores: whoever never leaves them idle is measured all the same."""
_SAMPLE_S = 0.4
_LEAST_SPARE = 0.5
_SPARE_SHARE = 0.2
"""Cores that others may keep busy without a measurement suffering: half of one, or a fifth of many."""


class CpuUse:
    """Reads how many cores were busy since the last reading, whoever used them."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._busy_s = _busy_s()

    def read(self) -> float:
        """Return the mean number of busy cores since the last call (or since this object was made)."""
        at, busy_s = time.monotonic(), _busy_s()
        cores = (busy_s - self._busy_s) / max(at - self._at, 1e-3)
        self._at, self._busy_s = at, busy_s
        return max(0.0, cores)


def leaves_room(busy_cores: float) -> bool:
    """Return whether a measurement would find the cores that engines may use (nearly) all idle."""
    facts = hardware_facts()
    spare = max(_LEAST_SPARE, _SPARE_SHARE * facts.usable_cores)
    return facts.logical_cores - busy_cores >= facts.usable_cores - spare


async def wait_for_idle_cores(limit_s: float = QUIET_LIMIT_S) -> bool:
    """Wait until this machine's cores are idle, at most ``limit_s``. Returns whether they are."""
    await asyncio.to_thread(hardware_facts)  # the first call looks for graphics cards
    use = CpuUse()
    waited_s = 0.0
    while waited_s < limit_s:
        await asyncio.sleep(_SAMPLE_S)
        waited_s += _SAMPLE_S
        if leaves_room(use.read()):
            return True
    return False


def _busy_s() -> float:
    """Seconds that all cores together have worked since the machine started; those of guests are in them once."""
    times = psutil.cpu_times()._asdict()
    idle = ("idle", "iowait", "guest", "guest_nice")
    return float(sum(seconds for name, seconds in times.items() if name not in idle))

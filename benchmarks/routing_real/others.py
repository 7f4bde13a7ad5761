"""How much other programs used the cores while a request ran: their work is no error of a prediction."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import psutil

DISTURBED = 0.2
"""Cores that others used in the mean, beyond which a request says little about predictions."""

_NOT_WORK = frozenset({"idle", "iowait", "guest", "guest_nice"})


@dataclass(frozen=True, slots=True)
class Reading:
    """Seconds at one moment: the clock, what all cores have worked, and what this benchmark's processes have."""

    at_s: float
    all_s: float
    ours_s: float


class Others:
    """Everything on this machine that is neither the gateway, nor an engine of its, nor this benchmark.

    What the host takes from a virtual machine counts as well, where it says so ("steal").
    """

    def __init__(self, processes: Iterable[psutil.Process]) -> None:
        self._ours = [psutil.Process(os.getpid()), *processes]

    def read(self) -> Reading:
        """Take a reading: some milliseconds."""
        ours_s = 0.0
        for process in self._ours:
            with suppress(psutil.Error):
                times = process.cpu_times()
                ours_s += times.user + times.system
        all_s = sum(seconds for name, seconds in psutil.cpu_times()._asdict().items() if name not in _NOT_WORK)
        return Reading(time.perf_counter(), all_s, ours_s)

    def cores_since(self, before: Reading) -> float:
        """Return the cores that others used in the mean since a reading."""
        now = self.read()
        others_s = (now.all_s - before.all_s) - (now.ours_s - before.ours_s)
        return max(0.0, others_s / max(now.at_s - before.at_s, 1e-3))

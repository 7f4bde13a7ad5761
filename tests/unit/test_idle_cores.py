"""When this machine's cores are idle enough to measure."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator

import pytest

from measure import cpu
from measure.cpu import CpuUse, leaves_room, wait_for_idle_cores

Times = namedtuple("Times", "user system idle iowait steal guest")


class Facts:
    """A machine of which engines may use so many cores."""

    def __init__(self, logical: int, usable: float) -> None:
        self.logical_cores = logical
        self.usable_cores = usable


def test_all_that_works_counts_and_guests_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([Times(10, 5, 100, 7, 1, 4), Times(12, 6, 180, 9, 2, 5)])
    clock = iter([100.0, 102.0])
    monkeypatch.setattr(cpu.psutil, "cpu_times", lambda: next(readings))
    monkeypatch.setattr(cpu.time, "monotonic", lambda: next(clock))
    assert CpuUse().read() == (2 + 1 + 1) / 2.0


@pytest.mark.parametrize(
    ("logical", "usable", "busy", "room"),
    [
        (2, 2.0, 0.4, True),
        (2, 2.0, 0.7, False),
        (32, 32.0, 6.0, True),
        (32, 32.0, 7.0, False),
        (64, 2.0, 40.0, True),  # a container's share of a big machine
        (64, 2.0, 63.0, False),
    ],
)
def test_a_measurement_needs_the_cores_that_engines_may_use(
    monkeypatch: pytest.MonkeyPatch, logical: int, usable: float, busy: float, room: bool
) -> None:
    monkeypatch.setattr(cpu, "hardware_facts", lambda: Facts(logical, usable))
    assert leaves_room(busy) is room


class Use:
    """Plays ``CpuUse``: one reading after the other."""

    readings: Iterator[float]

    def read(self) -> float:
        return next(self.readings)


@pytest.mark.parametrize(("readings", "idle"), [([2.0, 1.5, 0.1, 9.9], True), ([2.0] * 100, False)])
async def test_the_wait_ends_with_the_first_idle_moment_or_at_its_limit(
    monkeypatch: pytest.MonkeyPatch, readings: list[float], idle: bool
) -> None:
    monkeypatch.setattr(cpu, "hardware_facts", lambda: Facts(2, 2.0))
    monkeypatch.setattr(cpu, "CpuUse", Use)
    monkeypatch.setattr(cpu, "_SAMPLE_S", 0.001)
    Use.readings = iter(readings)
    assert await wait_for_idle_cores(limit_s=0.02) is idle

"""What this machine did while a request ran: read from the system, kept in a ring, the worst of it told."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import adapters.gpus
from gateway.requests.machine import Machine
from gateway.requests.outside import MOST_STAGES, read_baggage, read_stages
from gateway.requests.resources import KEPT, ResourceWatch, worst
from policies.diagnosis.case import Resources


def pressure(folder: Path, total_us: int) -> Path:
    for what in ("memory", "io", "cpu"):
        (folder / what).write_text(
            f"some avg10=25.00 avg60=0.00 avg300=0.00 total={total_us}\nfull avg10=0.00 total=0\n"
        )
    return folder


def test_stalls_are_those_since_the_last_look_and_at_first_the_systems_own_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("gateway.requests.machine.time.monotonic", lambda: now[0])
    look = Machine(pressure(tmp_path, 1_000_000))
    assert look().memory_stall == 0.25
    pressure(tmp_path, 1_400_000)
    now[0] += 1.0
    assert look().disk_stall == pytest.approx(0.4)
    now[0] += 60.0  # nobody asked for a minute
    assert look().cpu_stall == 0.25


def test_a_system_that_says_nothing_is_no_error(tmp_path: Path) -> None:
    seen = Machine(tmp_path / "absent")()
    assert (seen.memory_stall, seen.disk_stall, seen.cpu_stall) == (None, None, None)
    assert seen.memory_bytes


def test_the_use_of_each_gpu_is_read_where_its_driver_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(Exception):
        pass

    def rates(device: int) -> SimpleNamespace:
        if device:
            raise Refused
        return SimpleNamespace(gpu=7)

    driver = SimpleNamespace(
        NVMLError=Refused,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUtilizationRates=rates,
        nvmlDeviceGetMemoryInfo=lambda device: SimpleNamespace(used=10 + device, total=100),
    )
    monkeypatch.setattr(adapters.gpus, "_nvml", lambda: driver)
    loads = adapters.gpus.gpu_loads()
    assert [(each.use, each.used_bytes, each.whole_bytes) for each in loads] == [(0.07, 10, 100), (None, 11, 100)]


def test_a_request_keeps_the_worst_of_its_own_time_only() -> None:
    watch = ResourceWatch(lambda: Resources(samples=1), lambda: False)
    for at, stall, left in ((0.0, 0.9, 5), (10.0, 0.1, 50), (11.0, 0.3, 40), (30.0, 0.8, 1)):
        watch.add(at, Resources(samples=1, memory_stall=stall, memory_available_bytes=left))
    seen = watch.between(10.0, 12.0)
    assert seen is not None
    assert (seen.samples, seen.memory_stall, seen.memory_available_bytes) == (2, 0.3, 40)
    assert watch.between(100.0, 101.0) is None
    assert worst([]) is None


def test_the_ring_is_bounded() -> None:
    watch = ResourceWatch(lambda: Resources(samples=1), lambda: False)
    for at in range(2 * KEPT):
        watch.add(float(at), Resources(samples=1))
    seen = watch.between(0.0, 2.0 * KEPT)
    assert seen is not None
    assert seen.samples == KEPT


def test_stages_outside_are_names_and_seconds() -> None:
    assert read_stages("retrieval=0.8, rerank = 12") == (("retrieval", 0.8), ("rerank", 12.0))
    with pytest.raises(ValueError, match="NAME=SECONDS"):
        read_stages("retrieval=0.8,,")


def test_stages_in_baggage_are_those_of_our_name_and_what_others_put_there_is_left_alone() -> None:
    theirs = "tenant=acme,paceline.stage.bad=soon, paceline.stage.=1,paceline.stage.late=1e9,%zz=;,"
    ours = "paceline.stage.retrieval=0.8;unit=s , paceline.stage.rerank = %30.1"
    assert read_baggage(theirs) == ()
    assert read_baggage(theirs + ours) == (("retrieval", 0.8), ("rerank", 0.1))
    assert read_baggage(ours, (("rerank", 2.0),)) == (("rerank", 2.0), ("retrieval", 0.8))
    assert len(read_baggage(",".join(f"paceline.stage.s{n}=1" for n in range(99)))) == MOST_STAGES

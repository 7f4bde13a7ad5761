"""The watch over this machine and an engine's process: on real processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from measure.host_watch import HostWatch

MIB = 1 << 20
HOLDS = "import sys; held = bytearray(80 << 20); held[::4096] = bytes(len(held[::4096])); print(flush=True); input()"
PASSES = "input(); held = bytearray(80 << 20); held[::4096] = bytes(len(held[::4096])); del held; print(flush=True)"
WORKS = "print(flush=True); sum(range(20_000_000)); print(flush=True); input()"


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def start(processes: list[subprocess.Popen[str]], program: str) -> subprocess.Popen[str]:
    """Start a Python process, and wait until it does what it is for."""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    processes.append(process)
    line_of(process)
    return process


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


async def test_the_memory_of_the_engines_process_is_read_while_it_works(processes: list[subprocess.Popen[str]]) -> None:
    engine = start(processes, HOLDS)
    async with HostWatch(lambda: engine.pid) as watch:
        pass
    assert watch.peak_memory_bytes is not None
    assert 80 * MIB < watch.peak_memory_bytes < 200 * MIB
    assert watch.machine is not None
    assert watch.machine.load_average is not None
    assert watch.machine.cores > 0


async def test_memory_that_was_held_only_between_two_readings_counts(processes: list[subprocess.Popen[str]]) -> None:
    engine = start(processes, f"print(flush=True); {PASSES}; input()")
    assert engine.stdin is not None
    assert engine.stdout is not None
    async with HostWatch(lambda: engine.pid) as watch:
        engine.stdin.write("\n")
        engine.stdin.flush()
        engine.stdout.readline()
    assert watch.peak_memory_bytes is not None
    assert watch.peak_memory_bytes > 80 * MIB


async def test_another_process_that_works_makes_the_record_say_so(processes: list[subprocess.Popen[str]]) -> None:
    engine = start(processes, HOLDS)
    workers = [start(processes, WORKS) for _ in range(os.cpu_count() or 1)]
    async with HostWatch(lambda: engine.pid) as watch:
        await asyncio.gather(*(asyncio.to_thread(line_of, worker) for worker in workers))
    assert watch.machine is not None
    assert watch.machine.others_cores is not None
    assert "other processes used" in watch.machine.busy


async def test_a_neighbour_that_is_made_to_work_is_a_part_of_the_measurement(
    processes: list[subprocess.Popen[str]],
) -> None:
    engine, neighbour = start(processes, HOLDS), start(processes, WORKS)
    async with (
        HostWatch(lambda: engine.pid, beside=[lambda: neighbour.pid]) as known,
        HostWatch(lambda: engine.pid) as unknown,
    ):
        await asyncio.to_thread(line_of, neighbour)
    assert known.machine is not None
    assert unknown.machine is not None
    assert known.machine.others_cores is not None
    assert unknown.machine.others_cores is not None
    assert known.machine.others_cores < unknown.machine.others_cores
    assert "other processes used" in unknown.machine.busy


async def test_of_an_engine_beside_itself_nothing_is_counted_twice(processes: list[subprocess.Popen[str]]) -> None:
    engine = start(processes, HOLDS)
    workers = [start(processes, WORKS) for _ in range(os.cpu_count() or 1)]
    async with HostWatch(lambda: engine.pid, beside=[lambda: engine.pid]) as watch:
        await asyncio.gather(*(asyncio.to_thread(line_of, worker) for worker in workers))
    assert watch.machine is not None
    assert "other processes used" in watch.machine.busy


async def test_who_else_worked_is_not_guessed_where_a_neighbour_is_hidden(
    processes: list[subprocess.Popen[str]],
) -> None:
    engine = start(processes, HOLDS)
    async with HostWatch(lambda: engine.pid, beside=[lambda: None]) as watch:
        pass
    assert watch.machine is not None
    assert watch.machine.others_cores is None


async def test_of_an_engine_on_another_machine_this_one_says_nothing() -> None:
    async with HostWatch(lambda: None, here=False) as watch:
        pass
    assert watch.machine is None


async def test_who_else_worked_is_not_guessed_where_the_engine_is_hidden() -> None:
    async with HostWatch(lambda: None) as watch:
        pass
    assert watch.peak_memory_bytes is None
    assert watch.machine is not None
    assert watch.machine.others_cores is None
    assert "other processes" not in watch.machine.busy

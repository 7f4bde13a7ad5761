"""Live traffic goes first: measurements wait for it, and are given up when it comes."""

from __future__ import annotations

import asyncio

import pytest

from measure.traffic import REPEATS, Disturbed, Traffic

LIMIT_S = 10.0


class Work:
    """A measurement that ends when told to, and knows how often it was begun and cancelled."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0
        self.running = asyncio.Event()
        self.stopped = asyncio.Event()
        self.may_end = asyncio.Event()

    async def __call__(self) -> str:
        self.begun += 1
        self.running.set()
        self.stopped.clear()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            self.running.clear()
            self.stopped.set()
            raise
        return "measured"


async def test_with_nobody_there_the_work_is_done_at_once() -> None:
    work = Work()
    work.may_end.set()
    assert await Traffic().quietly(work) == "measured"


async def test_work_begins_only_when_the_last_live_request_is_over() -> None:
    traffic, work = Traffic(), Work()
    work.may_end.set()
    traffic.begin()
    traffic.begin()
    waiting = asyncio.create_task(traffic.quietly(work))
    await asyncio.sleep(0)
    traffic.end()
    await asyncio.sleep(0)
    assert work.begun == 0
    traffic.end()
    assert await asyncio.wait_for(waiting, LIMIT_S) == "measured"


async def test_work_is_cancelled_when_a_live_request_begins_and_done_again_after_it() -> None:
    traffic, work = Traffic(), Work()
    waiting = asyncio.create_task(traffic.quietly(work))
    await asyncio.wait_for(work.running.wait(), LIMIT_S)
    traffic.begin()
    await asyncio.wait_for(work.stopped.wait(), LIMIT_S)
    assert work.begun == 1
    work.may_end.set()
    traffic.end()
    assert await asyncio.wait_for(waiting, LIMIT_S) == "measured"
    assert work.begun == 2


async def test_work_that_is_disturbed_again_and_again_is_given_up() -> None:
    traffic, work = Traffic(), Work()
    waiting = asyncio.create_task(traffic.quietly(work))
    for _ in range(REPEATS):
        await asyncio.wait_for(work.running.wait(), LIMIT_S)
        traffic.begin()
        await asyncio.wait_for(work.stopped.wait(), LIMIT_S)
        traffic.end()
    with pytest.raises(Disturbed):
        await asyncio.wait_for(waiting, LIMIT_S)
    assert work.begun == work.cancelled == REPEATS


async def test_without_quiet_the_work_is_never_begun() -> None:
    traffic, work = Traffic(), Work()
    traffic.begin()
    with pytest.raises(Disturbed):
        await traffic.quietly(work, idle_limit_s=0.01)
    assert work.begun == 0


async def test_cancelling_the_measurement_cancels_its_work() -> None:
    work = Work()
    waiting = asyncio.create_task(Traffic().quietly(work))
    await asyncio.wait_for(work.running.wait(), LIMIT_S)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert work.cancelled == 1


async def test_an_error_of_the_work_is_passed_on() -> None:
    async def fail() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError):
        await Traffic().quietly(fail)

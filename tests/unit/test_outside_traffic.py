"""A benchmark in a process of its own sees live traffic by looking, and gives way to it."""

from __future__ import annotations

import asyncio

import pytest

import measure.outside
from measure.outside import OutsideTraffic
from measure.traffic import Disturbed


class Elsewhere:
    """What other processes serve, as a test wants it seen."""

    def __init__(self) -> None:
        self.gauges = ""
        self.live = ""
        self.told: list[str] = []
        self.looked = asyncio.Event()
        self.waits = asyncio.Event()
        self.traffic = OutsideTraffic(self._gauges, self._live, self._tell)

    def _tell(self, reason: str) -> None:
        self.told.append(reason)
        self.waits.set()

    async def _gauges(self) -> str:
        return self.gauges

    async def _live(self) -> str:
        self.looked.set()
        return self.live


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    monkeypatch.setattr(measure.outside, "LOOK_S", 0.01)
    monkeypatch.setattr(measure.outside, "_SETTLE_S", 0.001)
    monkeypatch.setattr(measure.outside, "OURS_S", 0.05)
    return Elsewhere()


async def test_where_nothing_runs_nobody_waits(elsewhere: Elsewhere) -> None:
    assert await elsewhere.traffic.idle(0.0)
    assert elsewhere.told == []
    assert elsewhere.traffic.running == 0


async def test_what_is_waited_for_is_told_and_when_it_is_over(elsewhere: Elsewhere) -> None:
    elsewhere.gauges = "2 requests at near"
    waiting = asyncio.create_task(elsewhere.traffic.idle(10.0))
    await elsewhere.waits.wait()
    assert not waiting.done()
    elsewhere.gauges = ""
    assert await waiting
    assert elsewhere.told[0] == "2 requests at near"
    assert elsewhere.told[-1] == ""


async def test_a_wait_has_an_end(elsewhere: Elsewhere) -> None:
    elsewhere.live = "1 request at near"
    assert not await elsewhere.traffic.idle(0.03)
    assert elsewhere.traffic.running == 1


async def test_work_is_cancelled_when_a_live_request_begins(elsewhere: Elsewhere) -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    measuring = asyncio.create_task(elsewhere.traffic.give_way(work()))
    await elsewhere.looked.wait()
    elsewhere.live = "1 request at near"
    with pytest.raises(Disturbed):
        await measuring
    assert ended.is_set()


async def test_what_was_measured_beside_requests_that_came_past_the_gateway_is_of_no_use(
    elsewhere: Elsewhere,
) -> None:
    async def work() -> str:
        elsewhere.gauges = "1 request at near"
        return "measured"

    with pytest.raises(Disturbed):
        await elsewhere.traffic.give_way(work())


async def test_gauges_that_still_count_our_own_request_for_a_moment_do_no_harm(elsewhere: Elsewhere) -> None:
    readings = iter(["1 request at near"])

    async def lagging() -> str:
        return next(readings, "")

    elsewhere.traffic = OutsideTraffic(lagging, elsewhere._live, elsewhere._tell)

    async def work() -> str:
        return "measured"

    assert await elsewhere.traffic.give_way(work()) == "measured"


async def test_an_error_of_the_work_is_its_own(elsewhere: Elsewhere) -> None:
    async def work() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await elsewhere.traffic.give_way(work())

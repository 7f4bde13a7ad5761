"""A store that fails is left alone, looked after, and spoken of twice."""

from __future__ import annotations

import asyncio

import pytest

from cache.breaker import FAILURES_TO_OPEN, Breaker, StoreError


class Store:
    """Fails as long as it is told to."""

    def __init__(self) -> None:
        self.fails = True
        self.probes = 0
        self.works = asyncio.Event()

    async def probe(self) -> None:
        self.probes += 1
        if self.fails:
            raise StoreError("refused")
        self.works.set()


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cache.breaker.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("cache.breaker.LONGEST_PAUSE_S", 0.002)


def fail(breaker: Breaker, times: int) -> None:
    for _ in range(times):
        breaker.failed(StoreError("broken"))


@pytest.mark.usefixtures("_quick")
async def test_it_opens_after_five_in_a_row_and_closes_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    breaker = Breaker("reading", store.probe)
    fail(breaker, FAILURES_TO_OPEN - 1)
    breaker.succeeded()
    fail(breaker, FAILURES_TO_OPEN - 1)
    assert not breaker.open
    fail(breaker, 1)
    assert breaker.open
    while store.probes < 3:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert (breaker.open, breaker.why) == (True, "refused")
    store.fails = False
    await store.works.wait()
    await asyncio.sleep(0)
    assert (breaker.open, breaker.why) == (False, "")
    assert [record.getMessage() for record in caplog.records] == [
        "cache: reading fails, requests go on without: broken",
        "cache: reading works again",
    ]
    await breaker.aclose()


@pytest.mark.usefixtures("_quick")
async def test_a_store_that_works_from_the_start_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    store.fails = False
    breaker = Breaker("reading", store.probe)
    breaker.trip()
    assert breaker.open
    await store.works.wait()
    await asyncio.sleep(0)
    assert not breaker.open
    assert not caplog.records
    await breaker.aclose()


async def test_closing_ends_its_task() -> None:
    store = Store()
    breaker = Breaker("reading", store.probe)
    breaker.trip()
    await asyncio.sleep(0)
    await breaker.aclose()
    assert store.probes <= 1

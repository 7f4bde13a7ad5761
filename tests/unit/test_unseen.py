"""An answer that comes as one body is taken to go as predicted: the ledger sees it read, then write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.unseen import UnseenProgress
from policies.ledger import Ledger
from policies.types import Estimate

LIMIT_S = 10.0


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await soon(holds):
            pass


async def soon(holds: Callable[[], bool]) -> bool:
    await asyncio.sleep(0)
    return holds()


async def test_it_reads_then_writes_as_predicted() -> None:
    ledger, now = Ledger(), asyncio.get_running_loop().time()
    lease = ledger.open("a", prefill_tokens=100, decode_tokens=40, context_tokens=100, now=now)
    progress = UnseenProgress(lease, Estimate(0.0, 0.0, 0.002, 0.008, 0.1), 40)
    assert ledger.view("a").prefilling == 1
    await until(lambda: ledger.view("a").prefilling == 0)
    assert ledger.view("a").owed_prefill_tokens == 0
    await until(lambda: ledger.view("a").owed_decode_tokens <= 10)
    assert ledger.view("a").inflight == 1
    progress.end()
    lease.close(asyncio.get_running_loop().time())
    assert ledger.view("a").inflight == 0


async def test_one_that_has_ended_moves_no_more() -> None:
    ledger, now = Ledger(), asyncio.get_running_loop().time()
    lease = ledger.open("a", prefill_tokens=100, decode_tokens=40, context_tokens=100, now=now)
    progress = UnseenProgress(lease, Estimate(0.0, 0.0, 0.0, 0.0, 0.1), 40)
    progress.end()
    later = asyncio.Event()
    asyncio.get_running_loop().call_later(0.001, later.set)  # after all that was due before it
    await later.wait()
    assert ledger.view("a").prefilling == 1
    lease.close(asyncio.get_running_loop().time())

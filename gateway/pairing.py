"""Times deployments beside each other: how much neighbours on the same hardware slow one another."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

from measure.async_store import AsyncStore
from measure.pairs import Member, measure_beside, neighbours
from measure.progress import Progress
from policies.types import Deployment, Health

if TYPE_CHECKING:
    from gateway.fleet import Fleet
    from gateway.quiet import Quiet

logger = logging.getLogger("paceline.measure")

RETRY_AFTER_S = 60.0
"""When live traffic left no room for a pair, it is left alone for so long."""

Pair = tuple[Deployment, Deployment]


class Pairing:
    """For each kind of engine on each piece of hardware one pair in the same engine and one of two engines: the first
    factors for all of that kind there, which serving then corrects."""

    def __init__(self, fleet: Fleet, store: AsyncStore, quiet: Quiet, progress: Progress) -> None:
        self._fleet = fleet
        self._store = store
        self._quiet = quiet
        self._progress = progress
        self._due: dict[tuple[str, str], float] = {}

    def left(self) -> int:
        """Return how many pairs are still to be timed."""
        return len(self._waiting())

    def keep(self, fingerprints: set[str]) -> None:
        """Forget what is known of all others."""
        self._due = {pair: due for pair, due in self._due.items() if fingerprints.issuperset(pair)}

    async def do_one(self) -> bool:
        """Time one pair that is not on record. Returns whether there was one."""
        for timed, neighbour in self._waiting():
            if not (self._quiet.allows(timed) and self._quiet.allows(neighbour)):
                continue
            pair = (timed.fingerprint, neighbour.fingerprint)
            self._due[pair] = math.inf
            if await self._store.paired(*pair):
                continue
            await self._quiet.settles(timed)
            if await self._time(timed, neighbour):
                return True
            self._due[pair] = asyncio.get_running_loop().time() + RETRY_AFTER_S
        return False

    def _waiting(self) -> list[Pair]:
        """Who is still to be timed beside whom; deployments that are up and measured only."""
        knows = self._fleet.learned.predictor.knows
        able = [
            deployment
            for deployment in self._fleet.deployments
            if not deployment.hosted
            and self._fleet.health_of(deployment) is Health.UP
            and knows(deployment.fingerprint)
        ]
        first: dict[tuple[frozenset[str], str, bool], Pair] = {}
        for timed, neighbour in neighbours(able):
            same = timed.id == neighbour.id
            first.setdefault((timed.hardware.devices, timed.engine, same), (timed, neighbour))
        now = asyncio.get_running_loop().time()
        return [pair for pair in first.values() if self._due.get((pair[0].fingerprint, pair[1].fingerprint), 0) <= now]

    async def _time(self, timed: Deployment, neighbour: Deployment) -> bool:
        """Measure one pair. Returns whether live traffic left room for it."""
        logger.info("measuring %s beside %s", timed.id, neighbour.id)
        engine, beside = self._fleet.engine_of(timed), self._fleet.engine_of(neighbour)
        records = await measure_beside(
            Member(engine.adapter, timed),
            Member(beside.adapter, neighbour),
            traffic=self._fleet.traffic_on(timed.hardware),
            progress=self._progress,
        )
        engine.forget_gauges()
        beside.forget_gauges()
        if not records:
            return False
        await self._store.add(*records)
        self._fleet.learned.paired(timed, await self._store.pairs(timed.fingerprint), self._fleet.deployments)
        return True

"""Measures how fast deployments are: those without a record, and those whose record no longer holds."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from gateway.quiet import NO_HURRY_S, Quiet
from measure.async_store import AsyncStore
from measure.progress import Progress
from measure.quick import QuickResult, measure_quickly
from measure.traffic import Disturbed, Traffic
from policies.types import Deployment, Health

if TYPE_CHECKING:
    from gateway.fleet import Fleet

logger = logging.getLogger("paceline.measure")

RETRY_AFTER_S = 60.0
"""After a measurement that failed, that deployment is left alone for so long."""
AGAIN_AFTER_S = 900.0
"""A measurement that did not bring the predictions back is not repeated sooner."""


class Speeds:
    """Measures one deployment at a time. The first measurement is made beside live traffic where there is no quiet,
    since nothing is known without it; a later one only when nothing else runs."""

    def __init__(self, fleet: Fleet, store: AsyncStore, quiet: Quiet, progress: Progress) -> None:
        self._fleet = fleet
        self._store = store
        self._quiet = quiet
        self._progress = progress
        self._not_before: dict[str, float] = {}
        self._doubtful: dict[str, str] = {}
        """Fingerprints that were measured in a bad moment, each with what was bad about it."""

    def left(self) -> int:
        """Return how many deployments are up and not measured."""
        return len(self._unmeasured())

    def keep(self, fingerprints: set[str]) -> None:
        """Forget what is known of all others."""
        self._not_before = {each: at for each, at in self._not_before.items() if each in fingerprints}
        self._doubtful = {each: why for each, why in self._doubtful.items() if each in fingerprints}

    async def do_one(self) -> bool:
        """Measure one deployment that has no measurement, else one whose measurement no longer holds.

        Returns whether there was one.
        """
        for deployment in self._unmeasured():
            if self._quiet.allows(deployment):
                await self._measure_first(deployment)
                return True
        for deployment, why in self._outdated():
            if self._quiet.allows(deployment) and self._fleet.is_idle(deployment.hardware):
                return await self._measure_again(deployment, why)
        return False

    def _unmeasured(self) -> list[Deployment]:
        """Deployments that are up and not measured; without those whose measurement failed a moment ago."""
        return [each for each in self._ready() if self._fleet.is_measurable(each)]

    def _outdated(self) -> list[tuple[Deployment, str]]:
        """Deployments whose measurement does not hold, or never did, each with the reason."""
        drifted, doubtful = self._fleet.learned.predictor.drifted, self._doubtful.get
        return [
            (each, why) for each in self._ready() if (why := drifted(each.fingerprint) or doubtful(each.fingerprint))
        ]

    def _ready(self) -> list[Deployment]:
        now = asyncio.get_running_loop().time()
        return [
            deployment
            for deployment in self._fleet.deployments
            if not deployment.hosted
            and self._not_before.get(deployment.fingerprint, 0.0) <= now
            and self._fleet.health_of(deployment) is Health.UP
        ]

    def _traffic(self, deployment: Deployment) -> Traffic:
        return self._fleet.traffic_on(deployment.hardware)

    async def _measure_first(self, deployment: Deployment) -> None:
        settled = await self._quiet.settles(deployment)
        if not settled:
            logger.info("%s is measured although this machine is busy with other things", deployment.id)
        result = await self._measure(deployment, self._traffic(deployment))
        await self._take(deployment, result)
        if not settled:
            self._doubtful[deployment.fingerprint] = "it was measured while this machine was busy with other things"
        elif any(record.disturbed for record in result.records):
            self._doubtful[deployment.fingerprint] = "it was measured beside live requests"

    async def _measure_again(self, deployment: Deployment, why: str) -> bool:
        """Returns whether it was measured: a live request ends that, and its time comes with the next quiet."""
        if not await self._quiet.settles(deployment, NO_HURRY_S):
            return False
        logger.info("%s is measured again: %s", deployment.id, why)
        try:
            result = await self._traffic(deployment).give_way(self._measure(deployment, Traffic()))
        except Disturbed:
            logger.info("%s: that measurement gave way to a live request", deployment.id)
            self._leave_alone(deployment, RETRY_AFTER_S)
            return False
        await self._take(deployment, result)
        self._doubtful.pop(deployment.fingerprint, None)
        self._leave_alone(deployment, AGAIN_AFTER_S)
        return True

    async def _measure(self, deployment: Deployment, traffic: Traffic) -> QuickResult:
        engine = self._fleet.engine_of(deployment)
        logger.info("measuring %s", deployment.id)
        try:
            return await measure_quickly(
                engine.adapter, deployment, traffic=traffic, progress=self._progress, memory=engine.peak_memory
            )
        finally:
            engine.forget_gauges()

    async def _take(self, deployment: Deployment, result: QuickResult) -> None:
        await self._store.add(*result.records)
        if result.failed:
            self._leave_alone(deployment, RETRY_AFTER_S)
            logger.warning("measuring %s failed: %s", deployment.id, result.failed)
        else:
            samples = await self._store.samples(deployment.fingerprint)
            batches = await self._store.batches(deployment.fingerprint)
            self._fleet.learned.measured(deployment, samples or result.samples, batches)

    def _leave_alone(self, deployment: Deployment, seconds: float) -> None:
        self._not_before[deployment.fingerprint] = asyncio.get_running_loop().time() + seconds

"""The one task that measures: deployments without a record first, then how neighbours slow each other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from typing import TYPE_CHECKING, Any

from measure.async_store import AsyncStore
from measure.database import StoreError
from measure.pairs import Member, measure_beside, neighbours
from measure.quick import measure_quickly
from policies.types import Deployment, Health

if TYPE_CHECKING:
    from gateway.fleet import Fleet

logger = logging.getLogger("paceline.measure")

RETRY_AFTER_S = 60.0
"""After a measurement that failed, that deployment is left alone for so long."""
SAVE_EVERY_S = 30.0
LOADING_LIMIT_S = 120.0


class Measuring:
    """Measures one thing at a time, so that no measurement disturbs another; live traffic has priority.

    What serving has taught is saved from here as well: every 30 seconds and at the end.
    """

    def __init__(self, fleet: Fleet, store: AsyncStore, *, enabled: bool) -> None:
        self._fleet = fleet
        self._store = store
        self._enabled = enabled
        self._changed = asyncio.Event()
        self._known: set[str] = set()
        self._retry_at: dict[str, float] = {}
        self._pair_due: dict[tuple[str, str], float] = {}
        self._task: asyncio.Task[None] | None = None
        self._done = 0
        self._now = ""
        self._settled = False

    def start(self) -> None:
        """Begin in the background."""
        self._task = asyncio.get_running_loop().create_task(self._work(), name="measure")

    def fleet_changed(self) -> None:
        """A deployment came, went or changed."""
        self._settled = False
        self._changed.set()

    def state(self) -> dict[str, Any]:
        """Return how far it is: measurements ``done`` and ``left``, what happens ``now``, whether it is ``settled``."""
        left = len(self._unmeasured()) + len(self._unpaired()) if self._enabled else 0
        return {"done": self._done, "left": left, "now": self._now, "settled": self._settled}

    def _progress(self, deployment: str, done: int, total: int, note: str) -> None:
        self._now = f"{deployment}: {note} ({done}/{total})" if done < total else ""

    async def restore(self) -> None:
        """Take back the token ratios of earlier runs."""
        try:
            self._fleet.learned.ratio.restore(await self._store.load_token_ratios())
        except (StoreError, KeyError, TypeError, ValueError) as error:
            logger.warning("what was learned earlier cannot be read: %s", error)

    async def aclose(self) -> None:
        """Stop, and save what was learned."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await self._save()

    async def _work(self) -> None:
        while True:
            self._changed.clear()
            try:
                self._forget_the_gone()
                await self._recall()
                measured = self._enabled and (await self._measure_one() or await self._pair_one())
                if measured:
                    continue
                self._settled = not self._changed.is_set()
                await self._save()
            except StoreError as error:
                logger.warning("speed records cannot be read or written: %s", error)
            except Exception:
                logger.exception("measuring failed; it goes on in %g s", RETRY_AFTER_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SAVE_EVERY_S):
                    await self._changed.wait()

    def _forget_the_gone(self) -> None:
        now = asyncio.get_running_loop().time()
        present = {deployment.fingerprint for deployment in self._fleet.deployments}
        self._known &= present
        self._retry_at = {each: at for each, at in self._retry_at.items() if at > now}
        self._pair_due = {pair: due for pair, due in self._pair_due.items() if present.issuperset(pair)}

    async def _recall(self) -> None:
        """Give the predictor what is on record for fingerprints that it has not met yet."""
        for deployment in self._fleet.deployments:
            fingerprint = deployment.fingerprint
            if fingerprint in self._known:
                continue
            self._known.add(fingerprint)
            if self._fleet.learned.predictor.knows(fingerprint):
                continue
            samples = await self._store.samples(fingerprint)
            if samples:
                learned = await self._store.load_learned(fingerprint)
                self._fleet.learned.recall(deployment, samples, await self._store.pairs(fingerprint), learned)

    def _unmeasured(self) -> list[Deployment]:
        """Deployments that are up and not measured; without those whose measurement failed a moment ago.

        While a model is being loaded on their hardware they wait, for two minutes at most: it would slow them.
        """
        now = asyncio.get_running_loop().time()
        if any(
            engine.health is Health.LOADING and now - engine.loading_since < LOADING_LIMIT_S
            for engine in self._fleet.engines
        ):
            return []
        return [
            deployment
            for deployment in self._fleet.deployments
            if not deployment.hosted
            and self._retry_at.get(deployment.fingerprint, 0.0) <= now
            and self._fleet.is_measurable(deployment)
        ]

    def _unpaired(self) -> list[tuple[Deployment, Deployment]]:
        """Who is still to be timed beside whom; deployments that are up and measured only.

        One pair in the same engine and one of two engines for each piece of hardware: the first factors for all that
        run there, which serving then corrects.
        """
        knows = self._fleet.learned.predictor.knows
        able = [
            deployment
            for deployment in self._fleet.deployments
            if not deployment.hosted
            and self._fleet.health_of(deployment) is Health.UP
            and knows(deployment.fingerprint)
        ]
        first: dict[tuple[frozenset[str], bool], tuple[Deployment, Deployment]] = {}
        for timed, neighbour in neighbours(able):
            same = timed.id == neighbour.id
            first.setdefault((timed.hardware.devices, same), (timed, neighbour))
        now = asyncio.get_running_loop().time()
        return [
            (timed, neighbour)
            for timed, neighbour in first.values()
            if self._pair_due.get((timed.fingerprint, neighbour.fingerprint), 0.0) <= now
        ]

    async def _measure_one(self) -> bool:
        for deployment in self._unmeasured():
            await self._measure(deployment)
            return True
        return False

    async def _measure(self, deployment: Deployment) -> None:
        engine = self._fleet.engine_of(deployment)
        logger.info("measuring %s", deployment.id)
        result = await measure_quickly(
            engine.adapter,
            deployment,
            traffic=self._fleet.traffic_on(deployment.hardware),
            progress=self._progress,
            memory=engine.peak_memory,
        )
        engine.forget_gauges()
        await self._store.add(*result.records)
        self._done += 1
        if result.failed:
            self._retry_at[deployment.fingerprint] = asyncio.get_running_loop().time() + RETRY_AFTER_S
            logger.warning("measuring %s failed: %s", deployment.id, result.failed)
        else:
            self._fleet.learned.measured(deployment, result.samples)

    async def _pair_one(self) -> bool:
        for timed, neighbour in self._unpaired():
            pair = (timed.fingerprint, neighbour.fingerprint)
            self._pair_due[pair] = math.inf
            if await self._store.paired(*pair):
                continue
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
            if not records:  # live traffic left no room for it
                self._pair_due[pair] = asyncio.get_running_loop().time() + RETRY_AFTER_S
                continue
            await self._store.add(*records)
            self._done += 1
            self._fleet.learned.paired(timed, await self._store.pairs(timed.fingerprint), self._fleet.deployments)
            return True
        return False

    async def _save(self) -> None:
        try:
            for fingerprint, state in self._fleet.learned.unsaved():
                await self._store.save_learned(fingerprint, state)
            await self._store.save_token_ratios(self._fleet.learned.ratio.to_dict())
        except StoreError as error:
            logger.warning("what was learned cannot be saved: %s", error)

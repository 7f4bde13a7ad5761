"""The one task that measures: speeds first, then how neighbours slow each other, then what nobody has used for long."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from adapters.errors import EngineError
from cache.tasks import end
from gateway.pairing import Pairing
from gateway.probing import Probing
from gateway.quiet import Quiet
from gateway.settings import RoutingSettings
from gateway.speeds import Speeds
from measure.async_store import AsyncStore
from measure.database import StoreError

if TYPE_CHECKING:
    from gateway.fleet import Fleet

logger = logging.getLogger("paceline.measure")

LOOK_EVERY_S = 30.0
"""How often it is looked whether there is something to do, and what serving has taught is saved."""


class Measuring:
    """Measures one thing at a time, so that no measurement disturbs another; live traffic has priority.

    What serving has taught is saved from here as well: every 30 seconds and at the end.
    """

    def __init__(self, fleet: Fleet, store: AsyncStore, settings: RoutingSettings) -> None:
        self._fleet = fleet
        self._store = store
        self._measures = settings.measure_at_start
        self._quiet = Quiet(fleet)
        self._speeds = Speeds(fleet, store, self._quiet, self._progress)
        self._pairing = Pairing(fleet, store, self._quiet, self._progress)
        self._probing = Probing(fleet, self._quiet, settings)
        self._changed = asyncio.Event()
        self._known: dict[str, int] = {}
        """Fingerprints with the state of their records at the last look."""
        self._task: asyncio.Task[None] | None = None
        self._done = 0
        self._now = ""
        self._settled = False

    def start(self) -> None:
        """Begin in the background: with what is on record. The first measurement waits for ``start_is_over``."""
        self._task = asyncio.get_running_loop().create_task(self._work(), name="measure")

    def start_is_over(self) -> None:
        """This process has imported everything: nothing of its own disturbs a measurement any more."""
        self._quiet.start_is_over = True
        self._changed.set()

    def fleet_changed(self) -> None:
        """A deployment came, went or changed."""
        self._settled = False
        self._changed.set()

    def state(self) -> dict[str, Any]:
        """Return how far it is: measurements ``done`` and ``left``, what happens ``now``, whether it is ``settled``."""
        left = self._speeds.left() + self._pairing.left() if self._measures else 0
        return {"done": self._done, "left": left, "now": self._now, "settled": self._settled and not left}

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
        await end(self._task)
        self._task = None
        await self._save()

    async def _work(self) -> None:
        while True:
            self._changed.clear()
            try:
                self._forget_the_gone()
                await self._recall()
                if await self._measure_one():
                    continue
                self._settled = self._quiet.start_is_over and not self._changed.is_set()
                await self._save()
            except StoreError as error:
                logger.warning("speed records cannot be read or written: %s", error)
            except EngineError as error:
                logger.info("measuring ended early: %s: %s", error.engine, error.message)
            except Exception:
                logger.exception("measuring failed; it goes on in %g s", LOOK_EVERY_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(LOOK_EVERY_S, self._probing.every_s)):
                    await self._changed.wait()

    async def _measure_one(self) -> bool:
        """Do the one thing that is due first. Returns whether there was one."""
        if self._measures and (await self._speeds.do_one() or await self._pairing.do_one()):
            self._done += 1
            return True
        return await self._probing.do_one()

    def _forget_the_gone(self) -> None:
        present = {deployment.fingerprint for deployment in self._fleet.deployments}
        self._known = {each: changes for each, changes in self._known.items() if each in present}
        for each in (self._speeds, self._pairing, self._probing):
            each.keep(present)

    async def _recall(self) -> None:
        """Give the predictor what is on record: for fingerprints that it has not met yet, and for those that another
        process (`paceline bench`) has measured since."""
        learned = self._fleet.learned
        for deployment in self._fleet.deployments:
            fingerprint = deployment.fingerprint
            changes = await self._store.changes(fingerprint)
            if self._known.get(fingerprint) == changes:
                continue
            self._known[fingerprint] = changes
            samples = await self._store.samples(fingerprint)
            if not samples:
                continue
            batches = await self._store.batches(fingerprint)
            if learned.predictor.knows(fingerprint):
                learned.measured(deployment, samples, batches)
            else:
                state = await self._store.load_learned(fingerprint)
                pairs = await self._store.pairs(fingerprint)
                learned.recall(deployment, samples, pairs, state, batches)

    async def _save(self) -> None:
        try:
            for fingerprint, state in self._fleet.learned.unsaved():
                await self._store.save_learned(fingerprint, state)
            await self._store.save_token_ratios(self._fleet.learned.ratio.to_dict())
        except StoreError as error:
            logger.warning("what was learned cannot be saved: %s", error)

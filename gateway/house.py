"""The running gateway: settings, the fleet, who may come in, and what runs at the moment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from cache.rules import Mode
from gateway.access_log import AccessLog
from gateway.admission import Admission
from gateway.assembly import Assembly
from gateway.caching import Caching
from gateway.client import Scope
from gateway.errors import ApiError
from gateway.exchange import Exchange, Witness
from gateway.experiments import Experiments
from gateway.fleet import Fleet
from gateway.keys import Caller, Door
from gateway.measuring import Measuring
from gateway.requests.log import RequestLog
from gateway.requests.recent import Recent
from gateway.settings import Settings
from gateway.telemetry.telemetry import Telemetry
from gateway.verdicts import Verdicts
from measure.async_store import AsyncStore
from measure.place import records_in
from policies.types import Operation

logger = logging.getLogger("paceline.house")


class House:
    """Everything that requests share. ``start`` and ``aclose`` belong to one event loop.

    Raises ``SettingsError`` for keys that cannot be used. One that only looks, and ``serves`` nobody, has no cache.
    """

    def __init__(self, settings: Settings, *, serves: bool = True) -> None:
        self.settings = settings
        self.door = Door(settings)
        self.admission = Admission(settings.limits, settings.auth.keys)
        self.fleet = Fleet(settings.routing, settings.models)
        self.caching = Caching(settings, self.fleet) if serves and _caches(settings) else None
        self.telemetry = Telemetry(settings.telemetry, self, sends=serves)
        self.witnesses: list[Witness] = [AccessLog(settings.log.access_share)] if settings.log.access else []
        """Who is told of each request at its end, in this order."""
        if self.telemetry.watches:
            self.witnesses.append(self.telemetry)
        remote = self.caching.stores.remote if self.caching is not None else None
        self.experiments = Experiments(settings, self.fleet, remote)
        self.witnesses.append(self.experiments)
        self._serves = serves
        self.running: dict[asyncio.Task[object], Exchange] = {}
        """The tasks that answer inference requests now."""
        self.recent = Recent()
        """The last requests that have ended, for who watches."""
        if serves:
            self.witnesses.append(self.recent)
        self.requests: RequestLog | None = None
        """The log of the last requests, where one is kept."""
        if serves and settings.requests.keep:
            self.requests = RequestLog(settings.requests, settings.data_dir, self.fleet, self.running)
            self.witnesses.append(self.requests)
        self.stop_begun = asyncio.Event()
        """Set as soon as a stop is asked for: whoever only watches leaves then."""
        self._assembly = Assembly(settings, self.fleet)
        self._store: AsyncStore | None = None
        self.measuring: Measuring | None = None
        self.verdicts: Verdicts | None = None

    async def start(self) -> None:
        """Open the records and take the engines in; returns without waiting for any of them."""
        self._store = await AsyncStore.open(records_in(self.settings.data_dir))
        self.measuring = Measuring(self.fleet, self._store, self.settings.routing)
        await self.measuring.restore()
        self.verdicts = Verdicts(self.fleet, self._store)
        await self.verdicts.start()
        self.fleet.on_change(self.measuring.fleet_changed)
        self.measuring.start()
        if self.caching is not None:
            self.caching.open()
        if self._serves:
            await self.experiments.start()
        if self.requests is not None:
            await self.requests.start()
        self._assembly.start()
        self.telemetry.start()

    def start_is_over(self) -> None:
        """This process has imported everything, so that measurements may begin."""
        if self.measuring is not None:
            self.measuring.start_is_over()

    async def wait_for_first_answers(self, limit_s: float) -> None:
        """Wait until every engine that is known has been asked once, for ``limit_s`` at most."""
        await self._assembly.wait_for_first_answers(limit_s)

    async def aclose(self) -> None:
        """Stop everything, the engines that are ours included, and save what was learned."""
        await self.experiments.aclose()
        await self._assembly.aclose()
        await self.telemetry.aclose()
        if self.requests is not None:
            await self.requests.aclose()
        if self.caching is not None:
            await self.caching.aclose()
        if self.measuring is not None:
            await self.measuring.aclose()
        if self.verdicts is not None:
            await self.verdicts.aclose()
        await self.fleet.aclose()
        if self._store is not None:
            await self._store.aclose()

    @property
    def store(self) -> AsyncStore:
        """The records. There are none before ``start``."""
        assert self._store is not None
        return self._store

    @property
    def stopping(self) -> bool:
        """Whether what still runs is being ended."""
        return self.fleet.stopping

    def let_in(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Caller:
        """Return who calls. Raises ``ApiError`` (401 or 403)."""
        return self.door.let_in(scope, headers)

    def tell(self, exchange: Exchange) -> None:
        """Tell all witnesses of a request that has ended. What is wrong with one of them is no request's fault."""
        for witness in self.witnesses:
            try:
                witness.ended(exchange)
            except Exception:
                self.witnesses = [each for each in self.witnesses if each is not witness]
                logger.exception("%s failed and is told of no request any more", type(witness).__name__)

    def refused(self, request_id: str, operation: Operation, arrived_at: float, error: ApiError) -> None:
        """A request was refused before it was read: there is no exchange to tell of."""
        self.telemetry.refused(operation, error)
        if self.requests is not None:
            self.requests.refused(request_id, operation, arrived_at, error)

    def end_running(self) -> None:
        """End what still runs: streams with an error event, other requests with a 503."""
        self.fleet.stopping = True
        for task in tuple(self.running):
            task.cancel()


def _caches(settings: Settings) -> bool:
    """Whether anything is cacheable at all."""
    modes = [settings.cache.mode, *(model.cache.mode for model in settings.models.values())]
    return any(mode not in (None, Mode.OFF) for mode in (*modes, *(key.cache for key in settings.auth.keys)))

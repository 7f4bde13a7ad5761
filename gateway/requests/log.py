"""The log of requests: told of each at its end, writes in the background, and knows those that run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from adapters.hardware import hardware_facts
from cache.tasks import end
from gateway.requests.beside import Stay, Stays
from gateway.requests.cases import alone, case_of
from gateway.requests.machine import Machine
from gateway.requests.note import LONGEST_TEXT, Note, note
from gateway.requests.resources import ResourceWatch
from gateway.requests.store import FILE, RequestStore, Wanted, most_refused
from measure.database import StoreError
from policies.diagnosis.case import Alone, Case, Ended, Resources, Stages

if TYPE_CHECKING:
    from gateway.errors import ApiError
    from gateway.exchange import Exchange
    from gateway.fleet import Fleet
    from gateway.settings_requests import RequestSettings
    from policies.types import Operation

logger = logging.getLogger("paceline.requests")

WRITE_EVERY_S = 0.5
_AT_ONCE = 200
"""Requests that are prepared before others get a turn."""
T = TypeVar("T")
Prepared = tuple[Note, float, Alone | None, Resources | None, list[Stay]]


class RequestLog:
    """A witness of all requests. ``running`` are the exchanges that are served now.

    What is noted waits in a queue that holds no more than is kept; a task of its own turns it into cases and writes
    them, in the one thread that owns the file. ``start`` and ``aclose`` belong to one event loop.
    """

    def __init__(
        self,
        settings: RequestSettings,
        folder: Path,
        fleet: Fleet,
        running: Mapping[asyncio.Task[object], Exchange],
        look: Callable[[], Resources] | None = None,
    ) -> None:
        self._settings = settings
        self._path = folder / FILE
        self._fleet = fleet
        self._running = running
        self._queue: deque[Note] = deque(maxlen=settings.keep)
        self._refused: deque[Case] = deque(maxlen=most_refused(settings.keep))
        """Apart from the others, so that a flood of them pushes none of those out."""
        self._stays = Stays()
        self._come = asyncio.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="requests")
        self._store: RequestStore | None = None
        self._task: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._failed = False
        self.resources = ResourceWatch(look or Machine(), self._is_busy)

    def ended(self, exchange: Exchange) -> None:
        """Note a request."""
        self._queue.append(note(exchange))
        self._stays.ended(exchange)
        self._come.set()

    def refused(self, request_id: str, operation: Operation, arrived_at: float, error: ApiError) -> None:
        """Note a request that was refused before it was read."""
        now = asyncio.get_running_loop().time()
        took_s = round(now - arrived_at, 6)
        self._refused.append(
            Case(
                request_id=request_id,
                at=time.time() - took_s,
                operation=operation.value,
                ended=Ended.REFUSED,
                total_s=took_s,
                stages=Stages(route_s=took_s),
                status=error.status,
                error=error.message[:LONGEST_TEXT],
                error_code=error.code or "",
            )
        )
        self._come.set()

    async def start(self) -> None:
        """Open the file and begin to write and to look at the machine."""
        self._store = await self._run(lambda: RequestStore(self._path, self._settings.keep))
        await self._run(hardware_facts)
        self._task = asyncio.get_running_loop().create_task(self._write_on(), name="requests")
        if self._settings.resources:
            self.resources.start()

    async def aclose(self) -> None:
        """Write what is left, and close the file."""
        await self.resources.aclose()
        await end(self._task)
        self._task = None
        if self._store is not None:
            await self.flush()
            await self._run(self._store.close)
            self._store = None
        self._thread.shutdown(wait=False)

    async def find(self, request_id: str) -> Case | None:
        """Return a request that runs, or the newest one of that id that is kept. Raises ``StoreError``."""
        exchange = next((each for each in self._running.values() if each.request_id == request_id), None)
        if exchange is not None:
            return self._live(exchange, self._stays.all(self._running.values()))
        await self.flush()
        store = self._opened()
        return await self._run(lambda: store.find(request_id))

    async def select(self, wanted: Wanted) -> list[tuple[int, Case]]:
        """Return what is kept. Raises ``StoreError``."""
        await self.flush()
        store = self._opened()
        return await self._run(lambda: store.select(wanted))

    def live(self) -> list[Case]:
        """Return the requests that run, in the order of their arrival."""
        return [self._live(exchange) for exchange in self._running.values()]

    async def flush(self) -> None:
        """Write all that is noted by now."""
        async with self._writing:
            while self._queue or self._refused:
                prepared = await self._prepare()
                try:
                    await self._run(partial(_add, self._opened(), prepared))
                    self._failed = False
                except StoreError as error:
                    if not self._failed:
                        logger.warning("requests cannot be kept: %s", error)
                    self._failed = True

    def _live(self, exchange: Exchange, stays: Sequence[Stay] = ()) -> Case:
        now = asyncio.get_running_loop().time()
        noted = note(exchange, now)
        neighbours: dict[str, float] = {}
        if noted.tries:
            others = self._fleet.inflight_on(noted.tries[-1].candidate.deployment) - 1
            neighbours["same_decoding"] = float(max(0, others))
        at = time.time() - (now - noted.arrived_at)
        seen = self.resources.between(noted.arrived_at, now)
        return case_of(noted, at, None, seen, stays, neighbours)

    async def _write_on(self) -> None:
        while True:
            await self._come.wait()
            await asyncio.sleep(WRITE_EVERY_S)
            self._come.clear()
            await self.flush()

    async def _prepare(self) -> list[Prepared | Case]:
        """Take a part of what is noted, with all that only this loop may read."""
        now, predictor = asyncio.get_running_loop().time(), self._fleet.learned.predictor
        epoch = time.time() - now
        prepared: list[Prepared | Case] = list(self._refused)
        self._refused.clear()
        stays = self._stays.all(self._running.values()) if self._queue else []
        while self._queue and len(prepared) < _AT_ONCE:
            each = self._queue.popleft()
            seen = self.resources.between(each.arrived_at, each.ended_at)
            prepared.append((each, epoch + each.arrived_at, alone(predictor, each, now), seen, stays))
        return prepared

    def _opened(self) -> RequestStore:
        if self._store is None:
            raise StoreError("the log of requests is closed")
        return self._store

    def _is_busy(self) -> bool:
        return bool(self._running or self._queue or self._refused)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _add(store: RequestStore, prepared: Iterable[Prepared | Case]) -> None:
    store.add([_case(each) for each in prepared])


def _case(prepared: Prepared | Case) -> Case:
    return prepared if isinstance(prepared, Case) else case_of(*prepared)

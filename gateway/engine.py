"""One engine as the gateway sees it: what it serves, whether it is up, and the one task that keeps that current."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from adapters.base import Adapter, EngineDescription
from adapters.errors import EngineError, Loading, Unreachable
from cache.tasks import end
from gateway.source import Source
from policies.types import Deployment, Hardware, Health

logger = logging.getLogger("paceline.engine")

DESCRIBE_EVERY_S = 30.0
LOAD_EVERY_S = 4.0
"""How often gauges are read while nothing of ours runs there. llama.cpp notices leaving clients later when it is
polled every second or more often."""
LOAD_EVERY_BUSY_S = 15.0
RETRY_FIRST_S = 0.5
RETRY_LONGEST_S = 10.0
LOADING_EVERY_S = 0.5
_UP = Health.UP

Build = Callable[[EngineDescription, Hardware], tuple[Deployment, ...]]


class Engine:
    """One engine instance. ``deployments``, ``health`` and ``gauges`` answer from memory, never from a poll.

    ``build`` turns a description into deployments; ``inflight`` counts the requests of ours that run there;
    ``on_change`` is called after deployments or health have changed.
    """

    def __init__(
        self, source: Source, *, build: Build, inflight: Callable[[], int], on_change: Callable[[], None]
    ) -> None:
        self.name = source.name
        self.source = source
        self.description: EngineDescription | None = None
        self.deployments: tuple[Deployment, ...] = ()
        self.health = Health.DOWN
        self.note = "not asked yet"
        self.foreign_running = 0
        self.foreign_waiting = 0
        """Requests that came past us, by the engine's gauges at ``gauges_at``; ours of that moment are taken off."""
        self.gauges_at = 0.0
        self._resident: frozenset[str] | None = None
        self._cold = False
        """Some deployment's model is not loaded."""
        self.loading_since = 0.0
        self.usual_load_s = 20.0
        self.peak_bytes: int | None = None
        """What the engine's process took at most, as of the last description."""
        self.first_answer = asyncio.Event()
        """Set once the engine has been asked for the first time, whatever it said."""
        self._build = build
        self._inflight = inflight
        self._on_change = on_change
        self._up = asyncio.Event()
        self._look = asyncio.Event()
        self._described_at = 0.0
        self._failures = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch the engine."""
        self._task = asyncio.get_running_loop().create_task(self._watch(), name=f"watch {self.name}")

    async def aclose(self) -> None:
        """Stop watching, close the connections, and stop the engine's process where it is ours."""
        await end(self._task)
        self._task = None
        await self.source.aclose()

    @property
    def adapter(self) -> Adapter:
        """The adapter to send with. Raises ``Unreachable`` as long as there is nothing to send to."""
        if self.source.adapter is None:
            raise Unreachable(self.note, engine=self.name)
        return self.source.adapter

    def peak_memory(self) -> int | None:
        """Return the bytes that the engine's process took at most, as of now. Takes some milliseconds."""
        return self.source.peak_memory()

    def forget_gauges(self) -> None:
        """What the gauges said is over: a measurement has ended, whose requests they counted and the ledger did not."""
        self.foreign_running = self.foreign_waiting = 0

    @property
    def is_plain(self) -> bool:
        """Whether its load is just what our own ledger says: it is up, all is loaded, nobody else's requests run."""
        return self.health is _UP and not (self._cold or self.foreign_running or self.foreign_waiting)

    def is_resident(self, deployment: Deployment) -> bool:
        """Return whether a deployment's model is loaded, as far as the engine says."""
        return self._resident is None or deployment.engine_model in self._resident

    def look_again(self) -> None:
        """A request met something unexpected: ask the engine soon, not in the request's path."""
        self._look.set()

    def mark_loading(self) -> None:
        """A request was told that the model is still loading."""
        if self.health is Health.UP:
            self._set_health(Health.LOADING, "loading its model")
        self._look.set()

    async def wait_until_up(self, limit_s: float) -> bool:
        """Wait for a loading engine, for ``limit_s`` at most. Returns whether it is up."""
        try:
            async with asyncio.timeout(limit_s):
                await self._up.wait()
        except TimeoutError:
            return False
        return True

    def remaining_load_s(self, now: float) -> float:
        """Seconds that a load which is under way will probably still take."""
        if self.health is not Health.LOADING:
            return 0.0
        return max(1.0, self.usual_load_s - (now - self.loading_since))

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            asked_for = self._look.is_set()
            self._look.clear()
            try:
                await self._ask(loop.time(), anew=asked_for or self._failures > 0)
                self._failures = 0
            except EngineError as error:
                self._failures += 1
                if isinstance(error, Loading):
                    self._set_health(Health.LOADING, error.message)
                else:
                    self._set_health(Health.DOWN, error.message)
                    if not self._inflight():
                        await self.source.reconnect()
            except Exception:
                if not self._failures:
                    logger.exception("engine %s: watching failed", self.name)
                self._failures += 1
                self._set_health(Health.DOWN, "could not be understood; the log has the cause")
            self.first_answer.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._look.wait()
                # Requests that fail in a burst ask for one look together.
                await asyncio.sleep(0.2)

    async def _ask(self, now: float, *, anew: bool) -> None:
        adapter = await self.source.connect()
        fresh = self.health is Health.UP and now - self._described_at < DESCRIBE_EVERY_S
        if anew or not fresh or not await self._read_gauges(adapter, now):
            description = self.source.complete(await adapter.describe())
            self._described_at = now
            self._learn(description, await self.source.hardware())
            self.peak_bytes = await asyncio.to_thread(self.peak_memory)
        self._set_health(Health.UP, "")

    async def _read_gauges(self, adapter: Adapter, now: float) -> bool:
        """Read the engine's gauges. Returns whether that went well: an engine may be up without any."""
        try:
            gauges = await adapter.load()
        except EngineError as error:
            logger.debug("engine %s: its gauges cannot be read: %s", self.name, error.message)
            self.foreign_running = self.foreign_waiting = 0
            return False
        ours = self._inflight()
        running, waiting = gauges.running or 0, gauges.waiting or 0
        self.foreign_running = max(0, running - ours)
        self.foreign_waiting = max(0, waiting - max(0, ours - running))
        if gauges.resident is not None:
            self._resident = gauges.resident
            self._cold = not all(self.is_resident(deployment) for deployment in self.deployments)
        self.gauges_at = now
        return True

    def _learn(self, description: EngineDescription, hardware: Hardware) -> None:
        self._resident = frozenset(model.engine_model for model in description.models if model.resident)
        self.description = description
        deployments = self._build(description, hardware)
        changed = deployments != self.deployments
        self.deployments = deployments
        self._cold = not all(self.is_resident(deployment) for deployment in deployments)
        if changed:
            self._on_change()

    def _set_health(self, health: Health, note: str) -> None:
        now = asyncio.get_running_loop().time()
        before, self.health, self.note = self.health, health, note
        if health is Health.UP:
            self._up.set()
        else:
            self._up.clear()
        if before is health:
            return
        if health is Health.LOADING:
            self.loading_since = now
        elif before is Health.LOADING and health is Health.UP:
            self.usual_load_s = now - self.loading_since
        level = logging.WARNING if health is Health.DOWN else logging.INFO
        logger.log(level, "engine %s is %s%s", self.name, health, f": {note}" if note else "")
        self._on_change()

    def _pause_s(self) -> float:
        if self.health is Health.LOADING:
            return LOADING_EVERY_S
        if self._failures:
            return float(min(RETRY_LONGEST_S, RETRY_FIRST_S * 2.0 ** min(self._failures - 1, 10)))
        return LOAD_EVERY_BUSY_S if self._inflight() else LOAD_EVERY_S

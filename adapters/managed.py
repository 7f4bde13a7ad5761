"""An engine that Paceline starts, watches, restarts and stops."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from adapters.base import EngineDescription
from adapters.errors import EngineError
from adapters.guarded import GuardedProcess
from adapters.launch import Command, LaunchError, LaunchSpec, command
from adapters.ports import LOOPBACK, free_port, is_free
from adapters.process import family, find_listener
from adapters.transport import Transport, TransportLimits

logger = logging.getLogger("paceline.managed")

PROBE_EVERY_S = 0.2
PROBE_TIMEOUT_S = 5.0

HealthCheck = Callable[[str], Awaitable[bool]]
"""Says whether the engine at a URL is ready. ``EngineError`` and OSError mean: not yet."""


class EngineState(StrEnum):
    """What an engine's process is doing."""

    STARTING = "starting"
    UP = "up"
    RESTARTING = "restarting"
    """It ended, or did not become ready, and is started again soon."""
    FAILED = "failed"
    """That happened over and over, or it cannot be started at all: it is tried again, but seldom."""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses before restarts: doubling from ``first_s`` to ``most_s``; after ``patience`` failures in a row ``slow_s``.

    After ``stable_s`` of being up, the next failure is the first again.
    """

    first_s: float = 1.0
    most_s: float = 30.0
    stable_s: float = 60.0
    patience: int = 5
    slow_s: float = 300.0

    def pause_s(self, failures: int) -> float:
        """Seconds to wait after this many failures in a row."""
        return self.slow_s if failures >= self.patience else min(self.first_s * 2.0 ** (failures - 1), self.most_s)


class ManagedEngine:
    """One engine process and the task that keeps it running. Belongs to one event loop.

    ``on_change`` is called in the loop after each change of ``state``; it must not raise. ``url`` is known from
    ``start`` on; a restart changes it only when somebody else has taken the port.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        *,
        healthy: HealthCheck | None = None,
        on_change: Callable[[ManagedEngine], None] | None = None,
        backoff: Backoff | None = None,
        build: Callable[[LaunchSpec, int], Command] = command,
    ) -> None:
        """``healthy`` replaces the default: the engine's health path answers 200."""
        self.spec = spec
        self.state = EngineState.STOPPED
        self.note = "not started"
        """Why it is in this state, in one line for a person."""
        self.url = ""
        self.version = ""
        """Its version where the engine itself does not tell it."""
        self.pid: int | None = None
        """The engine's own process, while it runs."""
        self.failures = 0
        """How often it has ended, or has not come up, since it was last stable."""
        self._healthy = healthy
        self._on_change = on_change
        self._backoff = backoff or Backoff()
        self._build = build
        self._port = 0
        self._attempts = 0
        self._error: LaunchError | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def up(self) -> bool:
        """Whether it runs and was ready."""
        return self.state is EngineState.UP

    @property
    def failed(self) -> bool:
        """Whether there is little hope left."""
        return self.state is EngineState.FAILED

    def complete(self, description: EngineDescription) -> EngineDescription:
        """Add what only its starter knows: a version that the engine hides, and how it was started."""
        models = tuple(
            replace(model, settings=f"{model.settings} launch={self.spec.digest}".strip())
            for model in description.models
        )
        return replace(description, version=self.version or description.version, models=models)

    def start(self) -> None:
        """Begin to keep it running, unless that has been begun. Returns at once."""
        if self._task is None:
            self.failures, self._error, self._stopping = 0, None, False
            self._listen_on(self.spec.port or free_port())
            self._set(EngineState.STARTING, "it is being started")
            self._task = asyncio.get_running_loop().create_task(self._keep(), name=f"engine {self.spec.name}")

    async def wait_up(self) -> None:
        """Wait until it is up. Raises LaunchError, with the last lines of its log, when the present attempt fails.

        It takes ``ready_timeout_s`` and the pause before the attempt at most. Further attempts follow until ``stop``.
        """
        attempt = self._attempts
        while not self.up:
            if self._error is not None and (self.failed or self._attempts > attempt):
                raise self._error
            if self.state is EngineState.STOPPED:
                raise LaunchError(self.note)
            await self._changed.wait()

    async def stop(self) -> None:
        """End the engine and wait for its end: politely, then by force. Also while it starts. Idempotent."""
        task = self._task
        if task is None:
            return
        if not self._stopping:  # a second cancellation would interrupt the ending
            self._stopping = True
            task.cancel()
        await asyncio.wait({task})
        if self._task is task:
            self._task = None
            self._set(EngineState.STOPPED, "it was stopped")

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                began_at, error = loop.time(), await self._run()
                was_stable = self.up and loop.time() - began_at >= self._backoff.stable_s
                self._attempts += 1
                self.failures = 1 if was_stable else self.failures + 1
                self._report(error)
                await asyncio.sleep(self._backoff.slow_s if self.failed else self._backoff.pause_s(self.failures))
        except Exception as error:
            logger.exception("%s is no longer watched", self.spec.name)
            self._error = LaunchError(f"it is no longer watched: {error!r}")
            self._set(EngineState.FAILED, str(self._error))

    async def _run(self) -> LaunchError:
        """Start it, and return how it ended or why it did not come up."""
        try:
            # In a thread: it looks for programs and graphics cards.
            made = await asyncio.to_thread(self._build, self.spec, await self._find_port())
            process = await GuardedProcess.start(made, self.spec)
        except LaunchError as error:
            return error
        try:
            self.pid, self.version = process.pid, made.version
            if (failure := await self._wait_ready(process, made.health_path)) is not None:
                return failure
            logger.info("%s is up at %s, process %d", self.spec.name, self.url, process.pid)
            self._set(EngineState.UP, "it is up")
            await process.ended.wait()
            return process.epitaph()
        finally:
            self.pid = None
            await process.end()

    async def _find_port(self) -> int:
        if not is_free(self._port):
            if self.spec.port:
                owner = await asyncio.to_thread(find_listener, self._port)
                by = f" by process {owner}" if owner else ""
                raise LaunchError(f"port {self._port} is in use{by}: choose another, or leave 'port' out")
            self._listen_on(free_port())
        return self._port

    async def _wait_ready(self, process: GuardedProcess, health_path: str) -> LaunchError | None:
        """Wait until it is ready, and return ``None``; or why it is not, with the process ended."""
        ready = asyncio.ensure_future(self._probe(health_path))
        ended = asyncio.ensure_future(process.ended.wait())
        try:
            await asyncio.wait({ready, ended}, timeout=self.spec.ready_timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return process.epitaph()
            if not ready.done():
                await process.end()
                return LaunchError(f"not ready within {self.spec.ready_timeout_s:g} s", log=process.log)
            ready.result()
        finally:
            ready.cancel()
            ended.cancel()
            await asyncio.wait({ready, ended})
        owner = await asyncio.to_thread(find_listener, self._port)
        if owner is not None and owner not in family(process.pid):
            return LaunchError(f"process {owner} took port {self._port} first")
        return None

    async def _probe(self, path: str) -> None:
        is_healthy = self._healthy or functools.partial(_answers, path)
        while True:
            with contextlib.suppress(EngineError, OSError):  # TimeoutError is an OSError
                async with asyncio.timeout(PROBE_TIMEOUT_S):
                    if await is_healthy(self.url):
                        return
            await asyncio.sleep(PROBE_EVERY_S)

    def _report(self, error: LaunchError) -> None:
        """Say what happened, to the log and to those who wait: once when a loop begins, not at each turn of it."""
        self._error = error
        gave_up = error.is_hopeless or self.failures >= self._backoff.patience
        if not gave_up:
            pause_s = self._backoff.pause_s(self.failures)
            logger.warning("%s starts again in %g s: %s", self.spec.name, pause_s, error)
        elif not self.failed and (error.is_hopeless or self.failures == self._backoff.patience):
            logger.error("%s is tried only every %g s from now on: %s", self.spec.name, self._backoff.slow_s, error)
        self._set(EngineState.FAILED if gave_up else EngineState.RESTARTING, error.line)

    def _listen_on(self, port: int) -> None:
        self._port = port
        self.url = f"http://{LOOPBACK}:{port}"

    def _set(self, state: EngineState, note: str) -> None:
        self.state, self.note = state, note
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if self._on_change is not None:
            self._on_change(self)


async def _answers(path: str, url: str) -> bool:
    transport = Transport(url, limits=TransportLimits(PROBE_TIMEOUT_S, PROBE_TIMEOUT_S, PROBE_TIMEOUT_S))
    try:
        response = await transport.request("GET", path)
        response.close()
        return response.status == 200
    finally:
        await transport.aclose()

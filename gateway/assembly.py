"""Puts the fleet together: engines from the configuration, and those found on this machine's usual ports."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from dataclasses import replace
from urllib.parse import urlsplit

from adapters.base import Endpoint, EngineDescription
from adapters.discover import Found, discover
from adapters.hardware import is_local
from adapters.managed import ManagedEngine
from cache.tasks import end
from gateway.deployments import EngineWord, build_deployments
from gateway.engine import Engine
from gateway.fleet import Fleet
from gateway.launching import launch_spec
from gateway.settings import EngineKind, EngineSettings, Settings
from gateway.source import AddressSource, ManagedSource, Source
from policies.types import Deployment, Hardware

logger = logging.getLogger("paceline.assembly")

DISCOVER_EVERY_S = 20.0


class Assembly:
    """Adds engines to a fleet. The task that looks for more is its own."""

    def __init__(self, settings: Settings, fleet: Fleet) -> None:
        self._settings = settings
        self._fleet = fleet
        self._found: set[str] = set()
        self._looked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Take in the configured engines, and begin to look for others where that is wanted."""
        for engine in self._settings.engines:
            self._add(_source(engine, self._settings), engine)
        if self._settings.discovers:
            self._task = asyncio.get_running_loop().create_task(self._discover(), name="discover")
        else:
            self._looked.set()

    async def wait_for_first_answers(self, limit_s: float) -> None:
        """Wait until every engine has been asked once, for ``limit_s`` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._looked.wait()
                for engine in self._fleet.engines:
                    await engine.first_answer.wait()

    async def aclose(self) -> None:
        """Stop looking. The engines belong to the fleet."""
        await end(self._task)
        self._task = None

    async def _discover(self) -> None:
        ports = tuple(port for port in self._settings.discovery.ports if port != self._settings.server.port)
        configured = {engine.url for engine in self._settings.engines}
        while True:
            try:
                for found in await discover(ports):
                    if found.url not in self._found and found.url not in configured:
                        self._found.add(found.url)
                        self._take_in(found)
            except Exception:
                logger.exception("looking for engines failed")
            self._looked.set()
            await asyncio.sleep(DISCOVER_EVERY_S)

    def _take_in(self, found: Found) -> None:
        name = f"{found.kind}-{urlsplit(found.url).port}"
        logger.info("found %s at %s", found.label, found.url)
        settings = EngineSettings(name=name, url=found.url)
        self._add(AddressSource(_endpoint(settings, found.url), None), settings)

    def _add(self, source: Source, settings: EngineSettings) -> None:
        fleet = self._fleet
        word = EngineWord(
            settings.name, settings.precision, settings.scheme, settings.models, dict(settings.capabilities)
        )

        def build(description: EngineDescription, hardware: Hardware) -> tuple[Deployment, ...]:
            return build_deployments(word, description, hardware)

        engine = Engine(source, build=build, inflight=lambda: fleet.inflight(engine), on_change=fleet.changed)
        fleet.add(engine)


def _source(settings: EngineSettings, all_settings: Settings) -> Source:
    launch = settings.launch
    kind = None if settings.kind is None else settings.kind.value
    hardware = _hardware(settings)
    if launch is None:
        return AddressSource(_endpoint(settings, settings.url or ""), kind, hardware)
    here = sum(each.launch is not None or is_local(each.url or "") for each in all_settings.engines)
    spec = replace(launch_spec(settings, launch, all_settings.data_dir), shares_cores=here > 1)
    return ManagedSource(_endpoint(settings, ""), ManagedEngine(spec), hardware)


def _hardware(settings: EngineSettings) -> Hardware | None:
    """What the operator says of where the engine runs; hosted APIs run where nobody here is slowed by them."""
    given = settings.hardware
    if given is None:
        return Hardware("hosted") if settings.kind is EngineKind.HOSTED else None
    devices = frozenset(f"{given.host}/{device}" for device in given.devices)
    return Hardware(given.host, devices, given.description)


def _endpoint(settings: EngineSettings, url: str) -> Endpoint:
    key = settings.api_key.get_secret_value() if settings.api_key else ""
    if settings.api_key_env:
        key = os.environ.get(settings.api_key_env, "")
    return Endpoint(
        name=settings.name,
        url=url,
        api_key=key,
        precision=settings.precision,
        slots=settings.slots,
        scheme=settings.scheme,
        models=settings.models,
        options=settings.options,
        model_dir=str(settings.model_dir or ""),
        verify_tls=settings.verify_tls,
        connect_timeout_s=settings.connect_timeout_s,
        first_byte_timeout_s=settings.first_byte_timeout_s,
        silence_timeout_s=settings.silence_timeout_s,
    )

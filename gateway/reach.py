"""Engines for a command that measures: those of a Paceline that runs, else its own, started and stopped with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from adapters.base import Adapter
from gateway.assembly import Assembly
from gateway.engine import Engine
from gateway.fleet import Fleet
from gateway.settings import EngineKind, EngineSettings, Settings
from policies.selector import near_names, resolve_model, selects
from policies.types import Deployment, Health

READY_LIMIT_S = 600.0
"""How long engines that have to be started may take."""
_FIRST_ANSWERS_S = 5.0
_LOOK_EVERY_S = 0.2

FleetEntry = Mapping[str, Any]
"""A deployment as ``GET /admin/fleet`` has it."""


class NoneSelected(Exception):
    """No deployment is meant by these words; the message says what there is."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A deployment that can be asked now."""

    deployment: Deployment
    engine: Engine
    beside: tuple[Engine, ...] = ()
    """All engines on the same hardware, its own included."""

    def adapter(self) -> Adapter:
        """Return what to send with. Raises ``Unreachable`` while there is nothing to send to."""
        return self.engine.adapter

    def pid(self) -> int | None:
        """Return the engine's process, where it is on this machine and may be seen."""
        return self.engine.source.pid


@asynccontextmanager
async def reach(
    settings: Settings,
    words: Collection[str],
    running: Sequence[FleetEntry] | None,
    tell: Callable[[str], None] = lambda note: None,
) -> AsyncIterator[list[Reached]]:
    """Yield the deployments that ``words`` mean, once their engines are up.

    ``running`` is the fleet of the Paceline that runs with these settings; ``None``: there is none, and the configured
    engines are started for the time of the block. Without words all are meant but hosted APIs, which cost money.
    Raises ``NoneSelected``.
    """
    if running is not None:
        settings = _as_they_run(settings, running)
    fleet = Fleet(settings.routing, settings.models)
    assembly = Assembly(settings, fleet)
    assembly.start()
    try:
        await assembly.wait_for_first_answers(_FIRST_ANSWERS_S)
        await _wait_until_loaded(fleet, tell)
        there = fleet.deployments if running is None else _as_known_there(fleet.deployments, running)
        yield [Reached(each, fleet.engine_of(each), _beside(fleet, each)) for each in chosen(words, there)]
    finally:
        await assembly.aclose()
        await fleet.aclose()


def chosen(words: Collection[str], deployments: Sequence[Deployment]) -> list[Deployment]:
    """Return the deployments that are meant: by id, model, or ``MODEL@SELECTOR``. Raises ``NoneSelected``."""
    models = {deployment.model for deployment in deployments}
    found: dict[str, Deployment] = {}
    for word in words:
        model, selector = resolve_model(word, models)
        meant = [
            each
            for each in deployments
            if word == each.id or (model == each.model and selects(selector, each)) or selects(word, each)
        ]
        if not meant:
            known = sorted(models | {each.id for each in deployments})
            there = ", ".join(near_names(word, known) or known) or "no deployment at all"
            raise NoneSelected(f"{word!r} means no deployment that runs; there is {there}")
        found |= {each.id: each for each in meant}
    if not words:
        found = {each.id: each for each in deployments if not each.hosted}
    if not found:
        raise NoneSelected("no engine serves a model; `paceline doctor` says what it looked for")
    return list(found.values())


def _beside(fleet: Fleet, deployment: Deployment) -> tuple[Engine, ...]:
    return tuple(
        engine for engine in fleet.engines if any(d.hardware.shares(deployment.hardware) for d in engine.deployments)
    )


def _as_they_run(settings: Settings, running: Sequence[FleetEntry]) -> Settings:
    """The settings with the addresses of what was started, in place of how to start it again."""
    addresses = {entry["endpoint"]: entry["url"] for entry in running if entry.get("url")}
    engines = tuple(
        engine if engine.launch is None else _running(engine, addresses[engine.name])
        for engine in settings.engines
        if engine.launch is None or engine.name in addresses
    )
    discovery = settings.discovery.model_copy(update={"enabled": settings.discovers})
    return settings.model_copy(update={"engines": engines, "discovery": discovery})


def _running(engine: EngineSettings, url: str) -> EngineSettings:
    assert engine.launch is not None
    kind = EngineKind(engine.launch.engine.value)
    return engine.model_copy(update={"launch": None, "url": url, "kind": kind})


def _as_known_there(deployments: Sequence[Deployment], running: Sequence[FleetEntry]) -> list[Deployment]:
    """The deployments with the fingerprints of the Paceline that runs, which knows more of what it started itself."""
    fingerprints = {entry["id"]: entry.get("fingerprint", "") for entry in running}
    return [
        replace(each, fingerprint=fingerprints[each.id] or each.fingerprint)
        for each in deployments
        if each.id in fingerprints
    ]


async def _wait_until_loaded(fleet: Fleet, tell: Callable[[str], None]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(READY_LIMIT_S):
            while loading := [engine.name for engine in fleet.engines if engine.health is Health.LOADING]:
                tell(f"loading {', '.join(loading)}")
                await asyncio.sleep(_LOOK_EVERY_S)

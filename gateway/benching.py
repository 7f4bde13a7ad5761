"""What a benchmark has to know of the fleet: how each deployment is reached, and what live traffic there is."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from adapters.errors import EngineError
from gateway.engine import Engine
from gateway.launching import told_settings
from gateway.reach import Reached
from gateway.settings import Settings
from measure.outside import OutsideTraffic
from measure.subject import Subject

FleetOf = Callable[[], Sequence[Mapping[str, Any]]]
"""Asks a running Paceline for its deployments, as ``GET /admin/fleet`` has them; blocks for some milliseconds."""


def subjects(
    reached: Sequence[Reached], settings: Settings, ask: FleetOf | None, waiting: Callable[[str], None]
) -> list[Subject]:
    """Return the deployments as a benchmark takes them. ``ask`` is ``None`` when no Paceline runs; ``waiting`` is told
    what a benchmark waits for."""
    launches = {engine.name: engine.launch for engine in settings.engines}
    found = []
    for each in reached:
        engine, deployment = each.engine, each.deployment
        described = () if engine.description is None else engine.description.models
        told = next((model.settings for model in described if model.engine_model == deployment.engine_model), "")
        found.append(
            Subject(
                deployment,
                connect=each.adapter,
                pid=_pid_of(engine),
                traffic=OutsideTraffic(_gauges(each.beside), _live(ask, each.beside), waiting),
                here=deployment.hardware.host == socket.gethostname(),
                settings=told_settings(told, deployment.engine_version, launches.get(engine.name)),
            )
        )
    return found


def _pid_of(engine: Engine) -> Callable[[], int | None]:
    return lambda: engine.source.pid


def _gauges(engines: Collection[Engine]) -> Callable[[], Awaitable[str]]:
    """Say what requests the engines on one piece of hardware have, whoever sent them."""

    async def look() -> str:
        counts = await asyncio.gather(*(_count(engine) for engine in engines))
        return _words({engine.name: count for engine, count in zip(engines, counts, strict=True)})

    return look


async def _count(engine: Engine) -> int:
    try:
        gauges = await engine.adapter.load()
    except EngineError:
        return 0  # the measurement itself will meet that, and say it
    return (gauges.running or 0) + (gauges.waiting or 0)


def _live(ask: FleetOf | None, engines: Collection[Engine]) -> Callable[[], Awaitable[str]]:
    """Say what a running Paceline serves on the same hardware."""
    names = {engine.name for engine in engines}

    async def look() -> str:
        if ask is None:
            return ""
        counts: dict[str, int] = {}
        for entry in await asyncio.to_thread(ask):
            if entry.get("endpoint") in names:
                name = str(entry["endpoint"])
                counts[name] = counts.get(name, 0) + int(entry.get("inflight") or 0)
        return _words(counts)

    return look


def _words(counts: Mapping[str, int]) -> str:
    parts = [f"{count} request{'s' if count > 1 else ''} at {name}" for name, count in counts.items() if count]
    return ", ".join(parts)

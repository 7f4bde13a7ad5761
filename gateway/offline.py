"""The fleet without a running gateway: engines are asked what they are, records are read, no model is sent anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from gateway.house import House
from gateway.settings import Settings

FIRST_ANSWERS_S = 3.0


def watching_only(settings: Settings) -> Settings:
    """Return the settings without the engines that would have to be started, and with nothing measured."""
    running = tuple(engine for engine in settings.engines if engine.launch is None)
    discovery = settings.discovery.model_copy(update={"enabled": settings.discovers})
    routing = settings.routing.model_copy(update={"measure_at_start": False, "probe_share": 0.0})
    return settings.model_copy(update={"engines": running, "discovery": discovery, "routing": routing})


@asynccontextmanager
async def watching(settings: Settings) -> AsyncIterator[House]:
    """A house that only looks, once every engine has been asked."""
    house = House(watching_only(settings), serves=False)
    try:
        await house.start()
        await house.wait_for_first_answers(FIRST_ANSWERS_S)
        yield house
    finally:
        await house.aclose()


def look_around(settings: Settings) -> dict[str, Any]:
    """Return what `GET /admin/fleet` would: every deployment that runs, with the speeds on record."""
    from gateway import __version__
    from gateway.report import fleet_report

    async def look() -> dict[str, Any]:
        async with watching(settings) as house:
            return {"version": __version__, "deployments": fleet_report(house.fleet)}

    return asyncio.run(look())


def explain_offline(settings: Settings, question: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `POST /admin/explain` would. Raises ``ApiError`` for a model that nobody has."""
    from gateway.report import explanation
    from policies.types import Objective

    objective = Objective(question["objective"]) if question["objective"] else None

    async def ask() -> dict[str, Any]:
        async with watching(settings) as house:
            return explanation(
                house.fleet,
                question["model"],
                question["prompt"],
                question["max_tokens"],
                objective,
                stream=question["stream"],
            )

    return asyncio.run(ask())

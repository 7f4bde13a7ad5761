"""All checks, in the order in which a user would put things right."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.checks.cache import check_cache
from gateway.checks.engines import check_engines
from gateway.checks.finding import Finding, Level, ok
from gateway.checks.machine import check_machine, check_packages
from gateway.checks.server import check_server
from gateway.offline import watching
from gateway.settings import Settings, SettingsError, load_settings


def examine(config: Path | None) -> list[Finding]:
    """Read the configuration and check everything. What depends on a configuration that cannot be used is left out."""
    try:
        settings = load_settings(config)
    except SettingsError as error:
        broken = [Finding("configuration", Level.FIX, f"{p.where} {p.what}", p.fix) for p in error.problems]
        return [*broken, *check_packages()]
    source = f"{settings.path} is fine" if settings.path else "no file: defaults, and whatever engine is found"
    ours = [*check_machine(settings), *check_server(settings), *check_cache(settings)]
    return [ok("configuration", source), *ours, *_engines(settings)]


def _engines(settings: Settings) -> list[Finding]:
    async def ask() -> list[Finding]:
        async with watching(settings) as house:
            return list(check_engines(settings, house.fleet.engines))

    try:
        return asyncio.run(ask())
    except SettingsError:
        # A key that cannot be used: check_server has said so.
        return []

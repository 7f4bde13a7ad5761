"""Checks of the server that keeps repeated prompts."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator, Mapping

from cache.address import parse_address
from cache.breaker import StoreError
from cache.codec import Codec
from cache.connection import Connection, connect, translate
from cache.embedded import NoServer, find_server
from cache.rules import Mode
from gateway.checks.finding import Finding, fix, note, ok, warn
from gateway.settings import Settings
from gateway.settings_cache import EMBEDDED, CacheSettings

CONNECT_LIMIT_S = 3.0
TRIES = 20
_FORGETS = "the server keeps nothing on disk: answers are gone when it restarts"
OLDEST = 7
"""Redis's first version that is known to do."""


def check_cache(settings: Settings) -> Iterator[Finding]:
    """Can the cache do what it is configured for?"""
    cache = settings.cache
    if cache.mode is Mode.OFF:
        yield ok("cache", "off")
        return
    yield from _encryption(cache)
    if not cache.url:
        size = cache.memory.human_readable()
        yield ok("cache", f"in memory, {size}; `cache: embedded` keeps answers across restarts")
    elif cache.url == EMBEDDED:
        yield from _embedded()
    else:
        yield from asyncio.run(_server(cache))


def _encryption(cache: CacheSettings) -> Iterator[Finding]:
    try:
        Codec(cache.encryption_keys())
    except ImportError:
        yield fix("cache", "encryption needs a package that is not installed", "pip install 'paceline[encryption]'")
    except ValueError as error:
        yield fix("cache", str(error), "Make one with `openssl rand -hex 32`.")


def _embedded() -> Iterator[Finding]:
    try:
        yield ok("cache", f"embedded: {find_server()}")
    except NoServer as error:
        yield fix("cache", "embedded, and there is no Valkey here", f"{error}")


async def _server(cache: CacheSettings) -> list[Finding]:
    address = parse_address(cache.url or "")
    try:
        connection = await asyncio.to_thread(connect, address)
    except (OSError, ValueError) as error:
        return [fix("cache", f"{address.label}: {translate(error)}", "Put cache.url right.")]
    try:
        said = await connection.ask("INFO", limit_s=CONNECT_LIMIT_S)
        took_ms = await _latency_ms(connection, cache.prefix)
        written = await _writable(connection, cache.prefix)
        keeps = await _keeps(connection)
    except StoreError as error:
        todo = "Requests go on without it. Start it, or put cache.url right."
        return [warn("cache", f"{address.label} cannot be used: {error}", todo)]
    finally:
        await connection.aclose()
    info = next(iter(said.values())) if said and all(isinstance(each, dict) for each in said.values()) else said
    forgets = [note("cache", _FORGETS)] if keeps is False else []
    return [*_findings(address.label, info), *forgets, *_speed(took_ms, cache.lookup_ms), *written]


async def _latency_ms(connection: Connection, prefix: str) -> float:
    clock = asyncio.get_running_loop().time
    times = []
    for _ in range(TRIES):
        start = clock()
        await connection.ask("GET", prefix + "probe", limit_s=CONNECT_LIMIT_S)
        times.append(clock() - start)
    return 1000 * statistics.median(times)


async def _writable(connection: Connection, prefix: str) -> list[Finding]:
    try:
        await connection.ask("SET", prefix + "probe", "1", "PX", 1000, limit_s=CONNECT_LIMIT_S)
    except StoreError as error:
        return [warn("cache", f"cannot be written: {error}", "What it holds is used, and nothing is added.")]
    return []


async def _keeps(connection: Connection) -> bool | None:
    """Return whether the server keeps anything on disk; ``None`` where it does not tell, as hosted ones do."""
    settings = {}
    for name in ("save", "appendonly"):
        try:
            said = await connection.ask("CONFIG", "GET", name, limit_s=CONNECT_LIMIT_S)
        except StoreError:
            return None
        values = list(said.values()) if isinstance(said, dict) else said[1:]
        if len(values) != 1:
            return None
        settings[name] = values[0]
    return bool(settings["save"] != b"" or settings["appendonly"] != b"no")


def _findings(label: str, info: Mapping[str, object]) -> Iterator[Finding]:
    version, valkey = str(info.get("redis_version", "0")), info.get("valkey_version")
    name = f"Valkey {valkey}" if valkey else f"Redis {version}"
    if not valkey and int(version.partition(".")[0] or 0) < OLDEST:
        yield warn("cache", f"{label}: {name} is old", f"Redis {OLDEST} or Valkey is what is tested.")
    else:
        yield ok("cache", f"{label}: {name}")
    limit, policy = int(str(info.get("maxmemory", 0))), str(info.get("maxmemory_policy", "noeviction"))
    if not limit:
        yield note("cache", "the server has no memory limit", "Set maxmemory, and maxmemory-policy allkeys-lfu.")
    elif policy == "noeviction":
        todo = "Set maxmemory-policy allkeys-lfu (or volatile-lfu, if it keeps other things)."
        yield warn("cache", f"the server takes nothing more once it holds {limit / 1e6:.0f} MB (noeviction)", todo)


def _speed(took_ms: float, limit_ms: float) -> Iterator[Finding]:
    if took_ms > limit_ms / 2:
        todo = "Put it nearer, or raise cache.lookup_ms: what takes longer is a miss."
        yield warn("cache", f"a question takes {took_ms:.1f} ms, and a request waits {limit_ms:g} ms", todo)
    else:
        yield ok("cache", f"a question takes {took_ms:.1f} ms")

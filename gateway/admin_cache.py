"""``/admin/cache``: what the cache did and holds, what is in an entry, and how it is emptied."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict, Field

from cache.breaker import StoreError
from cache.entry import Entry
from cache.key import pattern, tag
from gateway.caching import Caching
from gateway.errors import ApiError
from gateway.house import House

MOST_SHOWN = 20


class ClearRequest(BaseModel):
    """Which entries go: those to which all of this applies; without any of it, all."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(None, description="A logical model name.", examples=["SmolLM2-135M-Instruct"])
    key: str | None = Field(None, description="Name of a client's key, whose answers (and its group's) go.")
    older_than_s: float | None = Field(None, ge=0, description="Seconds since they were made.")


def add_cache_routes(router: APIRouter, house: House, check: Callable[[Request], None]) -> None:
    """Add the routes; ``check`` raises for who may not use them."""

    def caching(request: Request) -> Caching:
        check(request)
        if house.caching is None:
            raise ApiError(404, "The cache is off (cache.mode).", code="cache_off")
        return house.caching

    @router.get("/cache", summary="Hits, misses and what they saved by model; with ?count=1 what is in it")
    async def report(request: Request, count: bool = False) -> dict[str, Any]:
        return await cache_report(caching(request), house.fleet.models(), counted=count)

    @router.post("/cache/clear", summary="Delete entries by model, key or age, without holding anything up")
    async def clear(body: ClearRequest, request: Request) -> dict[str, Any]:
        cache = caching(request)
        model = house.fleet.resolve(body.model)[0] if body.model is not None else None
        scope = cache.scope(body.key) if body.key is not None else None
        try:
            deleted = await cache.stores.clear(pattern(model=model, scope=scope), body.older_than_s)
        except StoreError as error:
            raise _unavailable(error) from None
        return {"deleted": deleted}

    @router.get("/cache/entries/{key}", summary="The entries whose key begins so (x-paceline-cache-key)")
    async def entries(key: Annotated[str, Path(pattern="^[0-9a-f]{4,64}$")], request: Request) -> dict[str, Any]:
        try:
            found = await caching(request).stores.matching(pattern(digest=key), MOST_SHOWN)
        except StoreError as error:
            raise _unavailable(error) from None
        return {"entries": [_shown(name, entry) for name, entry in found.items()]}


async def cache_report(caching: Caching, models: list[str], *, counted: bool) -> dict[str, Any]:
    """Return what the cache did and holds."""
    stores, remote = caching.stores, caching.stores.remote
    report: dict[str, Any] = {
        "total": stores.statistics.total(),
        "models": stores.statistics.table(),
        "memory": {"entries": len(stores.memory), "bytes": stores.memory.bytes},
        "in_flight": len(caching.flights),
        "store": None,
    }
    if remote is not None:
        report["store"] = {
            "address": remote.address.label,
            "read": "works" if remote.available else remote.reading.why or "not connected yet",
            "written": remote.writing.why or "works",
            "writes_dropped": remote.dropped,
        }
        if counted and remote.available:
            names = {tag(model): model for model in models}
            try:
                held = await remote.count(pattern())
            except StoreError as error:
                raise _unavailable(error) from None
            report["store"]["models"] = {
                names.get(model, f"(no longer served: {model})"): {"entries": entries, "bytes": size}
                for model, (entries, size) in sorted(held.items())
            }
    return report


def _shown(name: str, entry: Entry | str) -> dict[str, Any]:
    digest, fingerprint = name.partition("{")[2].split("}:")
    shown: dict[str, Any] = {"key": digest, "fingerprint": fingerprint}
    if isinstance(entry, str):
        return {**shown, "unreadable": entry}
    now = time.time()
    return {
        **shown,
        "model": entry.model_name,
        "deployment": entry.deployment,
        "precision": entry.precision,
        "age_s": round(now - entry.created, 1),
        "expires_in_s": round(entry.expires - now, 1),
        "prompt_tokens": entry.prompt_tokens,
        "output_tokens": entry.output_tokens,
        "finish_reason": entry.finish_reason,
        "took_s": round(entry.took_s, 3),
        "streamed": entry.streamed,
        "pieces": len(entry.cuts),
        "bytes": len(entry.body),
        "body": entry.body.decode(errors="replace"),
    }


def _unavailable(error: StoreError) -> ApiError:
    return ApiError(503, f"The cache's server fails: {error}", code="cache_unavailable")

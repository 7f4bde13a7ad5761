"""``/admin/records``, ``/admin/compare``, ``/admin/verdicts``: what was measured and judged on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Query, Request

from gateway.errors import ApiError
from gateway.house import House
from gateway.report import who_gets
from measure.async_store import AsyncStore
from measure.compare import compare
from measure.compare_variables import NotComparable
from measure.database import StoreError
from measure.plot_series import panels
from measure.record_fields import FIELDS, identity
from measure.record_words import marks, output
from measure.records import Kind, Record
from measure.selection import Selection, SelectionError
from measure.verdicts import Judged
from policies.types import Deployment

T = TypeVar("T")

MOST_READ = 5_000
"""The newest records that are looked at: a page does not wait for all of a long history."""
MOST_SHOWN = 500

Select = Annotated[str, Query(description="A selection, as `paceline records` has them: NAME=VALUE[|VALUE…],…")]


def add_record_routes(router: APIRouter, house: House, check: Callable[[Request], None]) -> None:
    """Add the routes; ``check`` raises for who may not use them."""

    @router.get("/records", summary="Records by selection, the newest first, and curves through them")
    async def records(
        request: Request, select: Select = "", limit: Annotated[int, Query(ge=1, le=MOST_SHOWN)] = 200
    ) -> dict[str, Any]:
        check(request)
        selection = _parsed(select)
        known = await _read(_records(house.store))
        return await asyncio.to_thread(_listed, known, selection, limit)

    @router.get("/compare", summary="What one change did, and how sure that is; refused when more than one differs")
    async def comparison(
        request: Request, a: Select, b: Select, allow: Annotated[list[str] | None, Query()] = None
    ) -> dict[str, Any]:
        check(request)
        before, after = _parsed(a), _parsed(b)
        known = await _read(_records(house.store))
        return await asyncio.to_thread(_compared, known, before, after, allow or [])

    @router.get("/verdicts", summary="What quality regressions and soaks have found, by deployment")
    async def verdicts(request: Request) -> dict[str, Any]:
        check(request)
        quality = await _read(house.store.load_verdicts(Judged.QUALITY))
        stability = await _read(house.store.load_verdicts(Judged.STABILITY))
        return {
            "deployments": [
                {
                    **_standing(each, house.fleet.quality_why(each)),
                    "regression": _told(quality.get(each.fingerprint)),
                    "soak": stability.get(each.fingerprint),
                }
                for each in house.fleet.deployments
            ]
        }


async def _read(reading: Awaitable[T]) -> T:
    try:
        return await reading
    except StoreError as error:
        raise ApiError(503, f"The records cannot be read: {error}", code="records_unavailable") from None


async def _records(store: AsyncStore) -> list[Record]:
    found = [*await store.records(limit=MOST_READ), *(await store.imported())[:MOST_READ]]
    return sorted(found, key=lambda record: record.at, reverse=True)


def _parsed(text: str) -> Selection:
    try:
        return Selection.parse(text)
    except SelectionError as error:
        raise _wrong(error) from None


def _selected(selection: Selection, records: list[Record]) -> list[Record]:
    try:
        return selection.alone(records)
    except SelectionError as error:
        raise _wrong(error) from None


def _wrong(error: SelectionError) -> ApiError:
    return ApiError(400, error.message, code="selection", details={"fix": error.fix})


def _listed(known: list[Record], selection: Selection, limit: int) -> dict[str, Any]:
    found = selection.of(known) if known else []
    return {
        "known": len(known),
        "found": len(found),
        "records": [_plain(record) for record in found[:limit]],
        "panels": msgspec.to_builtins(panels(found)),
        "fields": {name: field.help for name, field in FIELDS.items()},
    }


def _compared(known: list[Record], before: Selection, after: Selection, allow: list[str]) -> dict[str, Any]:
    sides = [_selected(selection, known) for selection in (before, after)]
    try:
        made = compare(*sides, allow=allow, history=known)
    except NotComparable as refusal:
        differs = [msgspec.to_builtins(difference) for difference in refusal.differences]
        details = {"fix": refusal.fix, "differs": differs}
        raise ApiError(400, refusal.message, code="not_comparable", details=details) from None
    return {"a": len(sides[0]), "b": len(sides[1]), **made.to_dict()}


def _plain(record: Record) -> dict[str, Any]:
    """A record without its raw runs."""
    asked = record.asked
    return {
        "id": identity(record),
        "at": record.at,
        "kind": record.kind.value,
        "deployment": record.deployment,
        "model": record.model,
        "engine": record.engine,
        "engine_version": record.engine_version,
        "precision": record.precision.value,
        "scheme": record.scheme,
        "hardware": record.hardware,
        "prompt_tokens": record.prompt_tokens or asked.prompt_tokens,
        "prefix_tokens": asked.prefix_tokens,
        "output_tokens": asked.output_tokens,
        "concurrency": asked.concurrency,
        "runs": len(record.runs),
        "ttft_s": record.ttft_s,
        "ttft_max_s": record.ttft_max_s,
        "decode_per_s": record.decode_per_s,
        "throughput_per_s": record.throughput_per_s,
        "peak_memory_bytes": record.peak_memory_bytes,
        "peak_gpu_memory_bytes": record.peak_gpu_memory_bytes,
        "failed": record.failed,
        "output": output(record),
        "marks": marks(record),
        "foreign": record.foreign,
        "beside": record.beside.deployment if record.kind is Kind.PAIR and record.beside else "",
    }


def _standing(deployment: Deployment, why: str) -> dict[str, Any]:
    return {
        "id": deployment.id,
        "model": deployment.model,
        "engine": deployment.engine,
        "precision": deployment.precision,
        "scheme": deployment.scheme,
        "quality": deployment.quality,
        "why": why,
        "who": who_gets(deployment, why),
        "stable": deployment.stable,
        "hosted": deployment.hosted,
    }


def _told(details: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A regression's outcome with its measures in words; ``None`` without one that this version can read."""
    from measure.quality.verdict import QualityVerdict  # with all of the suite: only a page of it needs that

    try:
        verdict = msgspec.convert(details, QualityVerdict)
    except msgspec.ValidationError:
        return None
    measures = [
        {**plain, "title": measure.title, "limit": measure.limit, "found": measure.tell(measure.value)}
        | {"from": measure.tell(measure.low), "to": measure.tell(measure.high), "passed": measure.passed}
        for plain, measure in zip(verdict.to_dict()["measures"], verdict.measures, strict=True)
    ]
    return {**verdict.to_dict(), "measures": measures}

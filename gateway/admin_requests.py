"""``/admin/requests``: the last requests and those that run, each with its stages and why it was slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request

from gateway.errors import ApiError
from gateway.house import House
from gateway.requests.log import RequestLog
from gateway.requests.now import what_goes_on
from gateway.requests.report import request_report, request_summary
from gateway.requests.store import Wanted
from measure.database import StoreError
from policies.diagnosis.case import Ended

MOST = 500


def add_request_routes(router: APIRouter, house: House, check: Callable[[Request], None]) -> None:
    """Add the routes; ``check`` raises for who may not use them."""

    def log(request: Request) -> RequestLog:
        check(request)
        if house.requests is None:
            raise ApiError(404, "No requests are kept (requests.keep is 0).", code="requests_off")
        return house.requests

    @router.get("/requests", summary="The last requests, with the cause of what was slow; the newest first")
    async def requests(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=MOST)] = 50,
        model: str | None = None,
        deployment: str | None = None,
        ended: Ended | None = None,
        slower_than: Annotated[float | None, Query(ge=0, description="Seconds in all.")] = None,
        since: Annotated[float | None, Query(description="Seconds since the epoch.")] = None,
        before: Annotated[int | None, Query(description="`next` of the page before.")] = None,
        sort: Literal["newest", "slowest"] = "newest",
    ) -> dict[str, Any]:
        kept = log(request)
        if ended is Ended.RUNNING:
            return {"requests": [request_summary(case) for case in kept.live()[:limit]], "next": None}
        slowest = sort == "slowest"
        try:
            found = await kept.select(Wanted(limit, model, deployment, ended, slower_than, since, before, slowest))
        except StoreError as error:
            raise _unreadable(error) from None
        more = len(found) == limit and not slowest
        return {"requests": [request_summary(case) for _, case in found], "next": found[-1][0] if more else None}

    @router.get("/requests/{request_id}", summary="One request: stages, what was predicted, and why it was slow")
    async def one(request_id: str, request: Request) -> dict[str, Any]:
        kept = log(request)
        try:
            case = await kept.find(request_id)
        except StoreError as error:
            raise _unreadable(error) from None
        if case is None:
            most = house.settings.requests.keep
            message = f"No request {request_id[:200]!r} is known here: the last {most:,} are kept (requests.keep)."
            raise ApiError(404, message, code="unknown_request")
        return request_report(case)

    @router.get("/now", summary="Places, each deployment's load and speeds of the last minute, the last decisions")
    async def now(request: Request) -> dict[str, Any]:
        check(request)
        try:
            return await what_goes_on(house)
        except StoreError as error:
            raise _unreadable(error) from None


def _unreadable(error: StoreError) -> ApiError:
    return ApiError(503, f"The log of requests cannot be read: {error}", code="requests_unavailable")

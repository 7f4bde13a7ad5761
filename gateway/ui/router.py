"""``/ui`` and the routes under ``/admin`` that it reads."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from gateway.house import House
from gateway.keys import require_admin
from gateway.ui.feed import Feed, FeedResponse
from gateway.ui.records import add_record_routes
from gateway.ui.static_files import StaticFiles


def ui_router(house: House) -> APIRouter:
    """Return the routes."""
    feed = Feed(house)
    files = StaticFiles(needs_key=bool(house.settings.auth.keys))
    router = APIRouter()
    admin = APIRouter(prefix="/admin", tags=["admin"])

    def check(request: Request) -> None:
        require_admin(house.let_in(request.scope, dict(request.scope["headers"])))

    @router.get("/ui", include_in_schema=False)
    async def to_index() -> Response:
        return Response(status_code=307, headers={"location": "ui/"})

    @router.get("/ui/{path:path}", include_in_schema=False)
    async def file(path: str, request: Request) -> Response:
        answer = files.answer(path, request.headers.get("if-none-match", ""))
        if answer is None:
            raise HTTPException(404, "there is no such file; the dashboard is at /ui/")
        return answer

    @admin.get("/live", summary="Server-sent events: every second the state and the requests that have ended since")
    async def live(request: Request) -> Response:
        check(request)
        return FeedResponse(feed)

    add_record_routes(admin, house, check)
    router.include_router(admin)
    return router

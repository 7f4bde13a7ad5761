"""``/admin``: the fleet's state and why a route would be taken; for an admin key, or this machine without keys."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from gateway import __version__
from gateway.admin_cache import add_cache_routes
from gateway.admin_requests import add_request_routes
from gateway.house import House
from gateway.keys import require_admin
from gateway.report import explanation, fleet_report
from policies.types import Objective


class ExplainRequest(BaseModel):
    """What ``paceline explain`` asks: which deployment would be chosen for this prompt, and why."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(description="NAME or NAME@SELECTOR", examples=["SmolLM2-135M-Instruct@int8+"])
    prompt: str = Field(description="The text, as one user message; it is sent to no engine.")
    max_tokens: int | None = Field(None, ge=1)
    objective: Objective | None = None
    stream: bool = False


def admin_router(house: House) -> APIRouter:
    """Return the routes under ``/admin``."""
    router = APIRouter(prefix="/admin", tags=["admin"])

    def check(request: Request) -> None:
        require_admin(house.let_in(request.scope, dict(request.scope["headers"])))

    @router.get("/fleet", summary="Every deployment: state, load and last measured speeds")
    async def fleet(request: Request) -> dict[str, Any]:
        check(request)
        measuring = house.measuring.state() if house.measuring is not None else None
        return {"version": __version__, "measuring": measuring, "deployments": fleet_report(house.fleet)}

    @router.post("/explain", summary="Which deployment would be chosen, and why the others not; sends nothing")
    async def explain(body: ExplainRequest, request: Request) -> dict[str, Any]:
        check(request)
        return explanation(house.fleet, body.model, body.prompt, body.max_tokens, body.objective, stream=body.stream)

    add_cache_routes(router, house, check)
    add_request_routes(router, house, check)
    return router

"""``/admin/experiments`` and ``/admin/switch`` for an admin key, and ``/v1/feedback`` for whoever asked."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from gateway.errors import ApiError
from gateway.experiments.report import report, summary
from gateway.experiments.running import Running
from gateway.house import House
from gateway.keys import require_admin
from gateway.settings_experiments import ExperimentSettings


class RampRequest(BaseModel):
    """The share of the new arms; the next one of the ramp when left out."""

    model_config = ConfigDict(extra="forbid")

    share: float | None = Field(None, gt=0, le=1)


class SwitchRequest(BaseModel):
    """Which deployment is to serve a model's bare name."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(description="A logical model name.", examples=["SmolLM2-135M-Instruct"])
    to: str = Field(description="A deployment's id, or another selector.", examples=["vllm"])
    ramp: bool = Field(False, description="Step by step, 5, 25, 50 and 100 %, instead of at once.")


class BackRequest(BaseModel):
    """Whose switch is undone."""

    model_config = ConfigDict(extra="forbid")

    model: str


class FeedbackRequest(BaseModel):
    """What a caller thinks of an answer."""

    model_config = ConfigDict(extra="forbid")

    request_id: str = Field(description="The answer's `x-request-id`.", min_length=1, max_length=128)
    score: float = Field(description="From 0 (useless) to 1 (right).", ge=0, le=1)


def experiments_router(house: House) -> APIRouter:
    """Return the routes."""
    router = APIRouter()
    admin = APIRouter(prefix="/admin", tags=["experiments"])
    experiments = house.experiments

    def check(request: Request) -> None:
        require_admin(house.let_in(request.scope, dict(request.scope["headers"])))

    def told(running: Running) -> dict[str, Any]:
        return report(running, house.fleet, experiments.shadow.left_out)

    @admin.get("/experiments", summary="All experiments and switches, those that run first")
    async def everything(request: Request) -> dict[str, Any]:
        check(request)
        return {"experiments": [summary(each) for each in experiments.all]}

    @admin.get("/experiments/{name}", summary="Differences with intervals, and what may be said of them")
    async def one(name: str, request: Request) -> dict[str, Any]:
        check(request)
        return told(experiments.find(name))

    @admin.post("/experiments", summary="Begin one")
    async def begin(body: ExperimentSettings, request: Request) -> dict[str, Any]:
        check(request)
        return told(experiments.begin(body.experiment()))

    @admin.patch("/experiments/{name}", summary="Change the share of the new arms")
    async def ramp(name: str, body: RampRequest, request: Request) -> dict[str, Any]:
        check(request)
        return told(experiments.ramp(name, body.share))

    @admin.delete("/experiments/{name}", summary="End one; its report stays")
    async def stop(name: str, request: Request) -> dict[str, Any]:
        check(request)
        return told(experiments.stop(name))

    @admin.post("/switch", summary="Have one deployment serve a model's bare name")
    async def switch(body: SwitchRequest, request: Request) -> dict[str, Any]:
        check(request)
        return told(experiments.switch(body.model, body.to, ramp=body.ramp))

    @admin.post("/switch/back", summary="Undo a switch")
    async def back(body: BackRequest, request: Request) -> dict[str, Any]:
        check(request)
        return told(experiments.switch_back(body.model))

    @router.post("/v1/feedback", tags=["experiments"], summary="Score an answer of an experiment")
    async def feedback(body: FeedbackRequest, request: Request) -> dict[str, Any]:
        caller = house.let_in(request.scope, dict(request.scope["headers"]))
        if not experiments.feedback.score(body.request_id, caller.name, body.score):
            message = "No recent answer of an experiment to you has this id, or it has its score already."
            raise ApiError(404, message, param="request_id", code="no_such_request")
        return {"request_id": body.request_id, "score": body.score}

    router.include_router(admin)
    return router

"""Everything that is not inference: models, health, the operator's routes, the API's description; all of it FastAPI."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from gateway import __version__
from gateway.admin import admin_router
from gateway.admin_experiments import experiments_router
from gateway.errors import ApiError, no_such_model
from gateway.house import House
from gateway.keys import require_admin
from gateway.models_api import model_entry, model_list
from gateway.openapi import inference_paths
from gateway.telemetry.prometheus import page
from gateway.ui import ui_router

DESCRIPTION = """One endpoint in front of the engines on this machine. Each request goes to the deployment that will
finish it first, at the precision that was asked for; response headers say which, and why."""

_API_PAGE = Path(__file__).with_name("api_page.html")
"""Shows what stands in `/openapi.json` and sends requests; FastAPI's own takes its scripts from a foreign network."""


class Pages(FastAPI):
    """FastAPI, whose description has the inference routes as well: it does not see them, they are plain ASGI."""

    def openapi(self) -> dict[str, Any]:
        """The API's description."""
        if not self.openapi_schema:
            schema = super().openapi()
            schema["paths"] = {**inference_paths(), **schema["paths"]}
        assert self.openapi_schema is not None
        return self.openapi_schema


def build_pages(house: House) -> Pages:
    """Return the application for all paths but the inference routes."""
    app = Pages(title="Paceline", version=__version__, description=DESCRIPTION, docs_url=None, redoc_url=None)
    _add_routes(app, house)
    app.include_router(admin_router(house))
    app.include_router(experiments_router(house))
    app.include_router(ui_router(house))
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    return app


def _add_routes(app: FastAPI, house: House) -> None:
    fleet = house.fleet

    @app.get("/docs", include_in_schema=False)
    async def api_page() -> HTMLResponse:
        return HTMLResponse(_API_PAGE.read_bytes())

    @app.get("/health", tags=["state"], summary="Whether the process is alive")
    async def health() -> dict[str, str]:
        return {"status": "ok", "version": __version__}

    @app.get("/ready", tags=["state"], summary="Whether at least one deployment can serve")
    async def ready() -> JSONResponse:
        serving = sorted(deployment.id for deployment in fleet.deployments if fleet.serves(deployment))
        return JSONResponse({"ready": bool(serving), "deployments": serving}, status_code=200 if serving else 503)

    @app.get("/metrics", tags=["state"], summary="All metrics, for Prometheus; for an admin key where there are keys")
    async def metrics(request: Request) -> Response:
        require_admin(house.let_in(request.scope, dict(request.scope["headers"])))
        if not house.settings.telemetry.metrics:
            raise ApiError(404, "There are no metrics here: telemetry.metrics is off.")
        accept = request.headers.get("accept", "")
        body, content_type = await asyncio.to_thread(page, house.telemetry.families(), accept)
        return Response(body, headers={"content-type": content_type})

    @app.get("/v1/models", tags=["models"], summary="The models, each with precisions, context and capabilities")
    async def models(request: Request) -> dict[str, Any]:
        house.let_in(request.scope, dict(request.scope["headers"]))
        return model_list(fleet.deployments)

    @app.get("/v1/models/{name:path}", tags=["models"], summary="One model")
    async def model(name: str, request: Request) -> dict[str, Any]:
        house.let_in(request.scope, dict(request.scope["headers"]))
        of_model = fleet.deployments_of(name)
        if not of_model:
            raise no_such_model(name, fleet.models())
        return model_entry(name, of_model)


async def _on_api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    response = Response(error.encode(), error.status, media_type="application/json")
    response.raw_headers.extend(error.headers)
    return response


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    told = ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    return await _on_api_error(request, told)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"] if part != "body")
    return await _on_api_error(request, ApiError(400, f"'{field}': {first['msg']}", param=field or None))

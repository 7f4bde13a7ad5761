"""The ASGI application: the inference routes as they are, everything else through FastAPI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from gateway import __version__
from gateway.admin import admin_router
from gateway.client import Receive, Scope, Send
from gateway.endpoint import InferenceEndpoint
from gateway.errors import ApiError, no_such_model
from gateway.house import House
from gateway.models_api import model_entry, model_list
from gateway.openapi import PATHS, inference_paths

DESCRIPTION = """One endpoint in front of the engines on this machine. Each request goes to the deployment that will
finish it first, at the precision that was asked for; response headers say which, and why."""


class Paceline(FastAPI):
    """FastAPI, but for the inference routes: those are looked up first and served without its layers."""

    def __init__(self, house: House, **options: Any) -> None:
        super().__init__(**options)
        self.house = house
        self.inference = {path: InferenceEndpoint(house, operation) for operation, path in PATHS.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] == "http" and (endpoint := self.inference.get(scope["path"])) is not None:
            await endpoint(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """The API's description, the inference routes included."""
        if not self.openapi_schema:
            schema = super().openapi()
            schema["paths"] = {**inference_paths(), **schema["paths"]}
        assert self.openapi_schema is not None
        return self.openapi_schema


def create_app(house: House) -> Any:
    """Return the ASGI application for a house; the lifespan starts and ends the fleet."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await house.start()
        try:
            yield
        finally:
            await house.aclose()

    app = Paceline(house, title="Paceline", version=__version__, description=DESCRIPTION, lifespan=lifespan)
    _add_routes(app, house)
    app.include_router(admin_router(house))
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    if origins := house.settings.server.cors_origins:
        return CORSMiddleware(
            app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=["*"]
        )
    return app


def _add_routes(app: FastAPI, house: House) -> None:
    fleet = house.fleet

    @app.get("/health", tags=["state"], summary="Whether the process is alive")
    async def health() -> dict[str, str]:
        return {"status": "ok", "version": __version__}

    @app.get("/ready", tags=["state"], summary="Whether at least one deployment can serve")
    async def ready() -> JSONResponse:
        serving = sorted(deployment.id for deployment in fleet.deployments if fleet.serves(deployment))
        return JSONResponse({"ready": bool(serving), "deployments": serving}, status_code=200 if serving else 503)

    @app.get("/v1/models", tags=["models"], summary="The models, each with precisions, context and capabilities")
    async def models(request: Request) -> dict[str, Any]:
        house.let_in(request.scope, dict(request.scope["headers"]))
        return model_list(fleet.deployments)

    @app.get("/v1/models/{name:path}", tags=["models"], summary="One model")
    async def model(name: str, request: Request) -> dict[str, Any]:
        house.let_in(request.scope, dict(request.scope["headers"]))
        of_model = [deployment for deployment in fleet.deployments if deployment.model == name]
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

"""The ASGI application: the inference routes as they are, everything else from FastAPI, which joins a moment later."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

from gateway.client import Receive, Scope, Send
from gateway.endpoint import InferenceEndpoint
from gateway.house import House
from gateway.openapi import PATHS


class Paceline:
    """Serves a house. Its lifespan starts and ends it.

    Importing FastAPI takes longer than the rest of the start, and no inference request needs it: it is imported in a
    thread while the first requests are served already.
    """

    def __init__(self, house: House) -> None:
        self.house = house
        self._inference = {path: InferenceEndpoint(house, operation) for operation, path in PATHS.items()}
        self._pages: asyncio.Task[Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] == "http":
            endpoint: Any = self._inference.get(scope["path"])
            if endpoint is None:
                assert self._pages is not None
                endpoint = await asyncio.shield(self._pages)
            await endpoint(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1003})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.house.start()
        except OSError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        self._pages = asyncio.create_task(asyncio.to_thread(_import_pages, self.house), name="pages")
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._pages
        await self.house.aclose()
        await send({"type": "lifespan.shutdown.complete"})


def _import_pages(house: House) -> Any:
    return import_module("gateway.pages").build_pages(house)


def create_app(house: House) -> Any:
    """Return the ASGI application for a house."""
    app = Paceline(house)
    if origins := house.settings.server.cors_origins:
        from starlette.middleware.cors import CORSMiddleware

        return CORSMiddleware(
            app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=["*"]
        )
    return app

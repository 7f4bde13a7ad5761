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
    thread, once the server listens and has said so.
    """

    def __init__(self, house: House) -> None:
        self.house = house
        self._inference = {path: InferenceEndpoint(house, operation) for operation, path in PATHS.items()}
        self._serve = _open_to(house.settings.server.cors_origins, self._serve_http)
        self._pages: asyncio.Task[Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:
            await self._live(receive, send)

    async def join_pages(self) -> Any:
        """Return FastAPI's application, imported at the first call."""
        if self._pages is None:
            self._pages = asyncio.create_task(asyncio.to_thread(_import_pages, self.house), name="pages")
            self._pages.add_done_callback(lambda _: self.house.start_is_over())
        return await asyncio.shield(self._pages)

    async def _serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint: Any = self._inference.get(scope["path"])
        if endpoint is None:
            endpoint = await self.join_pages()
        await endpoint(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.house.start()
        except OSError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if self._pages is not None:
            await self._pages
        await self.house.aclose()
        await send({"type": "lifespan.shutdown.complete"})


def _import_pages(house: House) -> Any:
    return import_module("gateway.pages").build_pages(house)


def _open_to(origins: tuple[str, ...], app: Any) -> Any:
    """Return ``app`` as web pages of these origins may use it."""
    if not origins:
        return app
    from starlette.middleware.cors import CORSMiddleware

    return CORSMiddleware(app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=["*"])

"""The server process: listens, and stops gracefully: no new requests, time for what runs, then an end for the rest."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Awaitable, Callable
from types import FrameType

import uvicorn

from gateway.app import Paceline
from gateway.house import House
from gateway.no_websockets import NoWebSockets
from gateway.wire import Protocol

AFTER_END_S = 5.0
"""How long requests that were told to end may take for it."""


class Server(uvicorn.Server):
    """uvicorn, with an end for streams that outlive the time to stop, and a word when it listens."""

    def __init__(
        self,
        house: House,
        on_listening: Callable[[str, int], Awaitable[None]],
        on_complete: Callable[[], None] = lambda: None,
    ) -> None:
        self._app = Paceline(house)
        self._house = house
        self._on_listening = on_listening
        self._on_complete = on_complete
        super().__init__(_config(self._app, house))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, say where, and only then complete the application: inference requests are served meanwhile."""
        await super().startup(sockets)
        if self.started and not self.should_exit:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            await self._on_listening(host, port)
            await self._app.join_pages()
            self._on_complete()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop gracefully; a second Ctrl+C does not wait. The signal is not raised again: that stop is a success."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening at once; what still runs after ``graceful_stop_s`` is ended."""
        self._house.stop_begun.set()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._house.settings.server.graceful_stop_s, self._house.end_running)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()


def _settle_memory() -> None:
    """What the start has made stays for good: the garbage collector need not look at it with every few requests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def _config(app: Paceline, house: House) -> uvicorn.Config:
    server_settings = house.settings.server
    return uvicorn.Config(
        app,
        host=server_settings.host,
        port=server_settings.port,
        http=Protocol,
        ws=NoWebSockets,
        loop="uvloop",
        lifespan="on",
        access_log=False,
        proxy_headers=False,
        log_config=None,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=int(server_settings.graceful_stop_s + AFTER_END_S) + 1,
        timeout_keep_alive=75,
        backlog=4096,
    )


def run(house: House, on_listening: Callable[[str, int], Awaitable[None]]) -> bool:
    """Serve until SIGTERM or SIGINT. Returns whether it ever listened (a port that is taken has been logged)."""
    server = Server(house, on_listening, _settle_memory)
    # uvicorn leaves the process when it cannot listen; how that is told is the caller's matter.
    with contextlib.suppress(SystemExit):
        server.run()
    return server.started

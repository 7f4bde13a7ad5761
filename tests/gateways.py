"""A whole Paceline on a real uvicorn and a real socket, inside the test's process, so that its coverage counts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
from engines.scripted import ScriptedEngine

from gateway.house import House
from gateway.serve import Server
from gateway.settings import Settings

LIMIT_S = 20.0
MODEL = "m"


class Gateway:
    """Runs in a thread with its own event loop. ``url`` is known once it listens and its engines have been asked."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        server = {"port": 0, "graceful_stop_s": 5.0, **settings.pop("server", {})}
        routing = {"measure_at_start": False, **settings.pop("routing", {})}
        settings.setdefault("cache", "off")  # tests send the same request again, and mean it
        self.house = House(Settings(data_dir=folder, server=server, routing=routing, **settings))
        self._listening: Future[str] = Future()
        self._server = Server(self.house, self._on_listening)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._server.run, name="gateway", daemon=True)
        self._thread.start()
        self.url = self._listening.result(LIMIT_S)

    async def _on_listening(self, host: str, port: int) -> None:
        self._loop = asyncio.get_running_loop()
        await self.house.wait_for_first_answers(LIMIT_S)
        self._listening.set_result(f"http://{host}:{port}")

    def client(self, **options: Any) -> httpx.AsyncClient:
        """Return a client whose requests go to this gateway."""
        return httpx.AsyncClient(base_url=self.url, timeout=LIMIT_S, **options)

    def call(self, function: Any, *arguments: Any) -> Any:
        """Call a function in the gateway's event loop and return its result."""
        assert self._loop is not None
        done: Future[Any] = Future()

        def run() -> None:
            done.set_result(function(*arguments))

        self._loop.call_soon_threadsafe(run)
        return done.result(LIMIT_S)

    def run(self, coroutine: Coroutine[Any, Any, Any], limit_s: float = 120.0) -> Any:
        """Run a coroutine in the gateway's event loop and return its result."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(limit_s)

    def inflight(self) -> int:
        """Return how many requests the ledger counts."""
        return int(self.call(lambda: sum(self.house.fleet.inflight(engine) for engine in self.house.fleet.engines)))

    def wait_until_idle(self) -> None:
        """Return once the ledger counts nothing. Raises AssertionError after a limit."""
        end = time.monotonic() + 5.0
        while self.inflight():
            assert time.monotonic() < end, "the ledger still counts a request"

    def wait_until_reached(self) -> None:
        """Return once the shared cache is in use, which no request waits for. Raises AssertionError after a limit."""
        caching, end = self.house.caching, time.monotonic() + LIMIT_S
        assert caching is not None
        remote = caching.stores.remote
        assert remote is not None
        while not self.call(lambda: remote.available):
            assert time.monotonic() < end, "the cache cannot be reached"

    def wait_until_kept(self) -> None:
        """Return once all answers so far are in the shared cache: a client has them a moment before that."""
        caching = self.house.caching
        assert caching is not None
        remote = caching.stores.remote
        assert remote is not None

        async def kept() -> None:
            async with asyncio.timeout(LIMIT_S):
                for flight in tuple(caching.flights._all):
                    assert flight._task is not None
                    await asyncio.wait({flight._task})
                await remote.flush(LIMIT_S)

        self.run(kept())

    def wait_until_followed(self) -> None:
        """Return once another gateway reads along what this one is asking for. Raises AssertionError after a limit."""
        caching = self.house.caching
        assert caching is not None
        assert caching.replicas is not None
        publishers, end = caching.replicas._publishers, time.monotonic() + LIMIT_S
        while not self.call(len, publishers):
            assert time.monotonic() < end, "nobody reads along"

    def begin_stop(self) -> None:
        """Stop as SIGTERM does; returns at once."""
        self._server.should_exit = True

    def stop(self) -> None:
        """Stop and wait for the end. Idempotent."""
        self.begin_stop()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the gateway did not stop"


def engine_at(engine: ScriptedEngine, name: str, **more: Any) -> dict[str, Any]:
    """Return the settings of a scripted engine that serves ``MODEL``."""
    return {"name": name, "url": engine.url, "kind": engine.kind, "models": {engine.model: MODEL}, **more}


def chat_body(text: str = "hi", *, model: str = MODEL, **more: Any) -> dict[str, Any]:
    """Return the body of a chat request."""
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}

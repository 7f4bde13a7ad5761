"""The dashboard's one connection: every second what goes on, and the requests that have ended since.

Nothing is kept for a page that is slow: it gets the state as it is when it can take more, and of the requests those
that are still there. So neither many pages nor slow ones make anything grow.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import msgspec
from starlette.responses import Response

from cache.tasks import end
from gateway.client import Receive, Scope, Send
from gateway.errors import ApiError
from gateway.house import House
from gateway.requests.recent import MOST
from gateway.ui.state import state

EVERY_S: Final = 1.0
MOST_LISTENERS: Final = 16
RETRY_AFTER_S: Final = 10.0
STUCK_AFTER_S: Final = 30.0
"""A page that has taken nothing for so long is let go; it comes back by itself."""

_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Feed:
    """All open dashboards of one house."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._recent = house.recent
        self._encoder = msgspec.json.Encoder()
        self._listening = 0
        self._state: bytes = b""
        self._state_at = 0.0

    async def serve(self, receive: Receive, send: Send) -> None:
        """Write to one page until it leaves or this Paceline stops.

        Raises ``ApiError`` (503) when too many are open, ``TimeoutError`` when it takes nothing for ``STUCK_AFTER_S``.
        """
        if self._listening >= MOST_LISTENERS:
            message = f"{MOST_LISTENERS} dashboards are open already, the most that this Paceline serves: close one."
            raise ApiError(503, message, code="too_many_dashboards", retry_after_s=RETRY_AFTER_S)
        self._listening += 1
        left = asyncio.create_task(_until_left(receive), name="dashboard left")
        stopped = asyncio.create_task(_until_set(self._house.stop_begun), name="dashboard stopped")
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            seen = 0
            while True:
                data, seen = self._event(seen)
                async with asyncio.timeout(STUCK_AFTER_S):
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                if (await asyncio.wait({left, stopped}, timeout=EVERY_S, return_when=asyncio.FIRST_COMPLETED))[0]:
                    break
            if not left.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._listening -= 1
            await end(left)
            await end(stopped)

    def _event(self, seen: int) -> tuple[bytes, int]:
        """Return an event with the requests after number ``seen``, and the number of the last."""
        now = asyncio.get_running_loop().time()
        if not self._state or now - self._state_at >= EVERY_S / 2:
            self._state = self._encoder.encode(state(self._house))
            self._state_at = now
        requests = self._encoder.encode(self._recent.after(seen))
        return b'data: {"state":%b,"requests":%b,"most":%d}\n\n' % (self._state, requests, MOST), self._recent.count


class FeedResponse(Response):
    """One page's stream, as FastAPI's routes return it."""

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it."""
        with contextlib.suppress(TimeoutError):  # the server closes the connection of a response without an end
            await self._feed.serve(receive, send)


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _until_set(event: asyncio.Event) -> None:
    await event.wait()

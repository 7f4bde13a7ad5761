"""Events that cross threads: set in one event loop (or none), awaited in another, always with a limit."""

from __future__ import annotations

import asyncio
import threading

LIMIT_S = 20.0
"""How long a test waits for something that has to happen. Reached only when it does not."""


class Signal:
    """Like ``asyncio.Event``, usable from any thread and any loop."""

    def __init__(self, what: str = "the signal") -> None:
        self._what = what
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        with self._lock:
            self._event.set()
            waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_finish, future)

    async def wait(self, limit_s: float = LIMIT_S) -> None:
        """Return once it is set. Raises AssertionError after ``limit_s``."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._event.is_set():
                return
            self._waiters.append((loop, future))
        try:
            async with asyncio.timeout(limit_s):
                await future
        except TimeoutError:
            raise AssertionError(f"{self._what} did not happen within {limit_s:g} s") from None

    def wait_blocking(self, limit_s: float = LIMIT_S) -> None:
        """The same, for code without an event loop."""
        assert self._event.wait(limit_s), f"{self._what} did not happen within {limit_s:g} s"


class Gate:
    """Lets a script through one step at a time: ``pass_through`` takes a credit, ``release`` gives some."""

    def __init__(self, credits_: int = 0) -> None:
        self._credits = credits_
        self._open = False
        self._lock = threading.Lock()
        self._changed = Signal("the gate's release")

    def release(self, n: int = 1) -> None:
        """Let ``n`` more steps through."""
        with self._lock:
            self._credits += n
            self._wake()

    def open(self) -> None:
        """Let everything through from now on."""
        with self._lock:
            self._open = True
            self._wake()

    async def pass_through(self) -> None:
        """Wait for a credit and take it."""
        while True:
            with self._lock:
                if self._open:
                    return
                if self._credits:
                    self._credits -= 1
                    return
                changed = self._changed
            await changed.wait(limit_s=120.0)

    def _wake(self) -> None:
        changed, self._changed = self._changed, Signal("the gate's release")
        changed.set()


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

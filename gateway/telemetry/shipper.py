"""Brings traces and metrics out of the process, in a thread of its own: whatever happens there delays no request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from gateway.telemetry.content import Content
from gateway.telemetry.family import Family
from gateway.telemetry.span import Span

logger = logging.getLogger("paceline.telemetry")

MOST_WAITING: Final = 1024
"""Traces that wait to be sent; what comes beyond is dropped, and counted."""
BATCH: Final = 256
BATCH_S: Final = 1.0
"""How long a trace waits for others to go with it."""
COMPLAINT_EVERY_S: Final = 60.0
FLUSH_S: Final = 2.0
"""How long a stop waits for what is still to be sent."""


class Outlet(Protocol):
    """One place that gets traces and metrics. Its methods may block; each returns whether it was taken."""

    def spans(self, spans: Sequence[Span]) -> bool:
        """Hand over spans."""

    def metrics(self, families: Sequence[Family]) -> bool:
        """Hand over the metrics as they are now."""

    def close(self) -> None:
        """End a call that is under way, and accept none any more. May be called from another thread."""


class Trail:
    """A request's spans, and the texts that are still to be written into one of them."""

    __slots__ = ("content", "spans")

    def __init__(self, spans: list[Span], content: Content | None) -> None:
        self.spans = spans
        self.content = content


class Shipper:
    """Owns the thread and what waits for it. ``open_outlets`` is called there: it may take its time to import."""

    def __init__(self, open_outlets: Callable[[], Sequence[Outlet]], most: int) -> None:
        self.dropped = 0
        """Traces that were not sent."""
        self._open = open_outlets
        self._outlets: Sequence[Outlet] = ()
        self._waiting: queue.Queue[Trail | Sequence[Family] | None] = queue.Queue(most)
        self._stopping = threading.Event()
        self._complained_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def offer(self, what: Trail | Sequence[Family]) -> None:
        """Send this when there is time for it; never waits."""
        try:
            self._waiting.put_nowait(what)
        except queue.Full:
            self.dropped += isinstance(what, Trail)

    async def aclose(self) -> None:
        """Send what still waits, for ``FLUSH_S`` at most, and end."""
        self._stopping.set()
        with contextlib.suppress(queue.Full):  # it is awake then
            self._waiting.put_nowait(None)
        if not self._thread.is_alive():
            return
        await asyncio.to_thread(self._thread.join, FLUSH_S)
        if self._thread.is_alive():
            for outlet in self._outlets:  # some wait for the call that is under way, which nobody else is to do
                threading.Thread(target=outlet.close, name="telemetry's end", daemon=True).start()

    def _run(self) -> None:
        try:
            self._outlets = self._open()
        except Exception:
            logger.exception("traces and metrics cannot be sent")
            return
        while (batch := self._next()) is not None:
            trails = [each for each in batch if isinstance(each, Trail)]
            reports = [each for each in batch if not isinstance(each, Trail)]
            try:
                self._send(trails, reports[-1:])
            except Exception as error:  # noqa: BLE001 - the thread's edge; it is said once a minute
                self._complain(f"{type(error).__name__}: {error}", len(trails))
        for outlet in self._outlets:
            outlet.close()

    def _next(self) -> list[Trail | Sequence[Family]] | None:
        """Wait for something and for what comes soon after; ``None`` once nothing will come any more."""
        first = None if self._stopping.is_set() and self._waiting.empty() else self._waiting.get()
        batch = [] if first is None else [first]
        if first is not None:
            self._stopping.wait(BATCH_S)
        while len(batch) < BATCH:
            try:
                following = self._waiting.get_nowait()
            except queue.Empty:
                break
            if following is not None:
                batch.append(following)
        return batch or None

    def _send(self, trails: Sequence[Trail], reports: Sequence[Sequence[Family]]) -> None:
        spans = []
        for trail in trails:
            if trail.content is not None:
                trail.content.write(trail.spans)
            spans += trail.spans
        for outlet in self._outlets:
            taken = (not spans or outlet.spans(spans)) and all(outlet.metrics(each) for each in reports)
            if not taken:
                self._complain(f"{outlet} did not take them", len(trails))

    def _complain(self, why: str, traces: int) -> None:
        self.dropped += traces
        now = time.monotonic()
        if self._complained_at is None or now - self._complained_at >= COMPLAINT_EVERY_S:
            self._complained_at = now
            logger.warning("telemetry is lost, %d traces so far: %s", self.dropped, why)
